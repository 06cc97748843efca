"""Translates SQL, pandas and general Python into the expression language, for messages.

First, regular expressions (`_SYNTAX`) replace syntax of other languages by Python syntax. Then,
`_Forms` replaces calls, comparisons and operators in the syntax tree of the new text. The result is
a guess. `spec.expression` shows only results that are valid expressions.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

ROWS = ("df", "row", "batch", "record", "r")
"""Usual names of tables and rows. `row.NAME` and `row['NAME']` become the column NAME."""
_STRING = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"")
_MARK = "\u01c2"
"""A letter before and after the number that replaces a quoted text, which `_SYNTAX` must not
change. For example, `a = 'x'` becomes `a = \u01c20\u01c2`."""
_PLACEHOLDER = re.compile(rf"{_MARK}(\d+){_MARK}")
_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201c\u201d", "'"),
        **{"\u2265": ">=", "\u2264": "<=", "\u2260": "!="},
    }
)
"""Replaces quotes and signs of word processors by those of Python."""
_WORDS = {
    **{word: word for word in ("and", "or", "not", "in", "is", "if", "else")},
    **{"null": "None", "none": "None", "true": "True", "false": "False"},
}
"""Python's spelling of each word, by the word in lower case."""
_OPERAND = r"(?<![-+*/%.\w])(?<![-+*/%] )([^\W\d][\w.]*(?:\([\w.]+\))?)"
"""Matches a name, or a call with one argument, that is not the right side of a calculation."""
_NO_NAMES = (
    *(*keyword.kwlist, *_WORDS, "like", "ilike", "between", "select", "where", "case", "when"),
    *("xor", "of", "mod", "div", "contains", "startswith", "endswith", "matches", "equals", "than"),
)
_SPACED = re.compile(
    r"(?<![\w.])(?!\d)WORD(?: WORD)+".replace(
        "WORD", rf"(?!(?:{'|'.join(_NO_NAMES)})\b|{_MARK})\w+"
    ),
    re.IGNORECASE,
)
"""Matches a name with spaces."""
_SYNTAX = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"^(?:select \*? ?)?(?:filter|where|return|if) (?=[^\W\d]\w* *[.=!<>])(?!.* then )", ""),
        (
            r"(?:\b\w+\.)*\b(?:(?:now|today|utcnow|getdate)\(\)|(?:current_date|current_timestamp|"
            r"sysdate|curdate)\b(?:\(\))?)(?:\s*[-+]\s*(?:interval )?[\w.]+(?:\([^()]*\))?)?",
            "'{{ params.since }}'",
        ),
        (r"^\(?([^\W\d]\w*)\)? ?=> ?(?=.*\b\1[.\[])", r"lambda \1: "),
        (r"^(len|lower|upper|length) ([^\W\d]\w*)(?= |$)", r"\1(\2)"),
        (r"^(?:and|or) | (?:and|or)$|(?<=\d)[$\u20ac](?!\w)|\s*;\s*$|\bis (?=(?:not )?in\b)", ""),
        (r"(?<!is )\bnot null\b", "is not None"),
        (r"\bis (not )?empty\b", lambda match: f"{'!=' if match[1] else '=='} ''"),
        (r" mod ", " % "),
        (r"(?<=\b0),(?=\d)(?![^(\[]*[)\]])", "."),  # 0,5
        (r"(?<=\d),(?=\d{3}\b)(?![^(\[]*[)\]])", ""),  # 1,000
        (r"(?<=\d),(?=\d+\b)(?![^(\[]*[)\]])", "."),
        (r"(?<![\w.-])(\d{4}-\d\d-\d\d)(?![\w-])", r"'\1'"),
        (r"(?<=[<>] )0+(?=[1-9]\d*(?![\w.]))", ""),
        (rf"\bcast\({_OPERAND} as (\w+)\)", r"cast(\1, '\2')"),
        (rf"{_OPERAND}::(\w+)", r"cast(\1, '\2')"),
        (rf"{_OPERAND} (not )?between ([\w.]+) and ([\w.]+)", r"\2between(\1, \3, \4)"),
        (rf" (!?)=?~ ?(?={_MARK})", lambda match: f" {'not ' * len(match[1])}matches "),
        (r"\b(starts|ends) with\b", r"\1with"),
        (
            rf"{_OPERAND} (not )?(i?like|rlike|regexp|matches|contains|startswith|endswith) "
            rf"({_MARK}\d+{_MARK})",
            r"\2\3(\1, \4)",
        ),
        (r"\bcase (when .+ then .+?) end\b", lambda match: _choice(match[1])),
        (r"^if (.+) then (.+) else (.+?)(?: end)?$", r"iff(\1, \2, \3)"),
        (r"^(.+) if (?!.* else )(.+)$", r"\1 if \2 else None"),
        (rf"{_OPERAND} ?([<>]=?) ?([\w.]+) (and|or) (?=[<>=!])", r"\1 \2 \3 \4 \1 "),
        (rf"\b(?:date|timestamp) (?={_MARK})", ""),
        (
            r"(?:\byear\(([^\W\d]\w*)\)|\b([^\W\d]\w*)(?:\.dt)?\.year) ?([<>=!]=?) ?(\d{4})\b",
            lambda match: _of_year(match[1] or match[2], match[3], int(match[4])),
        ),
        (r"\bif ?\(", "iff("),
        (r"(.+?) \? (.+) : (.+)", r"iff(\1, \2, \3)"),
        (r"(?<!=)=!(?!=)|!\s+=(?!=)|!==|<>", " != "),
        (r"=([<>])", r" \1= "),
        (r"(?<!in )[$@:]?\{+\s*(\w+)\s*\}+|[$@](?=\w)", r"\1"),
        (r"`([^`]+)`|(?<![\w\])])\[([^\W\d][\w ]*)\](?= ?[<>=!])", r"\1\2"),
        (r";\s*(?=\S)", " and "),
        (r"~(?=\s*(?:\(|[\w.]+\(|[^\W\d]\w*\s*(?:$|[)&|])))|!(?!=)", " not "),
        (r"&&?", " and "),
        (r"\|\|?", " or "),
        (r"===", "=="),
        (r"(?<![=!<>])(?<!\bna)(?<!\bcase)(?<!\bregex)(?<!\bliteral)=(?![=<>])", "=="),
        (rf"\.({'|'.join(keyword.kwlist)})\b", r"['\1']"),
        (r"[^\S\n]+", " "),
    )
)
"""Syntax of other languages, and its replacement in Python. Quoted texts are placeholders here."""
_BITS = re.compile(r"(?<![&|])[&|](?![&|])")
_JOINED = re.compile(
    r"\b(?:and|or)\b|(?<!is )\bnot\b(?! in\b| i?like\b| between\b)|&&|\|\|", re.IGNORECASE
)
"""Matches operators whose precedence differs from that of `&` and `|`."""
_NO_PATTERN = re.compile(r"[\w\s,;:!@#%&='\"<>/~`-]*")
"""Matches texts without special characters of regular expressions."""
_LIKE = re.compile(r"(%?)([^%_\\]+)(%?)")
_NAN = ("NaN", "nan", "np.nan", "math.nan")
_SEARCHES = ("re.search", "re.match")
_NO_EFFECT = ("na", "regex", "literal")
"""Keyword arguments of pandas and Polars that are dropped."""
_MODULES = re.compile(r"^(?:np|numpy|pd|pandas|pl|polars|math|f|fn|func|str)\.")
_VALUES = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_UNKNOWN = ast.Call(ast.Name("unknown"), [], [])
"""The result for parts without a translation: a call that makes the expression invalid."""


def translated(text: str, rows: Sequence[str] = ROWS) -> str:
    """Return the text, translated into the expression language as far as possible. The result may
    be invalid. `rows` are names of rows and tables."""
    code = _STRING.sub("''", text)
    if _BITS.search(code) and _JOINED.search(code):  # with `_SYNTAX`, the precedence would change
        return _with_forms(text, rows, joins=False)
    guess = text if _STRING.search(text) else text.translate(_SYMBOLS)
    texts = {str(n): _quoted(literal) for n, literal in enumerate(_STRING.findall(guess))}
    numbers = iter(texts)
    guess = _STRING.sub(lambda _: f"{_MARK}{next(numbers)}{_MARK}", guess)
    for pattern, replacement in _SYNTAX:
        guess = pattern.sub(replacement, guess)
    guess = re.sub(r"(?<![.\w])\w+", lambda word: _WORDS.get(word[0].lower(), word[0]), guess)
    if _parsed(guess) is None:
        guess = _SPACED.sub(_named, guess)
    guess = _PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]), guess.strip())
    return _with_forms(guess, rows, joins="||" in text)


def _quoted(literal: str) -> str:
    """Return a quoted text of SQL as Python writes it, such as "it's" for 'it''s'."""
    return repr(literal[1:-1].replace("''", "'")) if "''" in literal[1:-1] else literal


def _choice(cases: str) -> str:
    """Return `when A then B when C then D else E` as `iff(A, B, iff(C, D, E))`."""
    parts = re.split(r"\b(?:when|then|else)\b", cases, flags=re.IGNORECASE)[1:]
    result = parts.pop() if len(parts) % 2 else "None"
    while parts:
        value, condition = parts.pop(), parts.pop()
        result = f"iff({condition.strip()}, {value.strip()}, {result.strip()})"
    return result


def _of_year(column: str, operator: str, year: int) -> str:
    """Return a comparison of the year of `column` as comparisons with the first day of a year."""
    begins, ends = f"{column} >= '{year}-01-01'", f"{column} < '{year + 1}-01-01'"
    return {
        ">=": begins,
        "<": begins.replace(">=", "<"),
        "<=": ends,
        ">": ends.replace("<", ">="),
        "!=": f"({begins.replace('>=', '<')} or {ends.replace('<', '>=')})",
    }.get(operator, f"({begins} and {ends})")


def _named(match: re.Match[str]) -> str:
    """Return a name with spaces as col('NAME'), or as a quoted text after == and !=."""
    is_text = match.string[: match.start()].rstrip().endswith(("==", "!="))
    return repr(match[0]) if is_text else f"col({match[0]!r})"


def _parsed(text: str) -> ast.expr | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _with_forms(text: str, rows: Sequence[str], *, joins: bool) -> str:
    """Return the text with the replacements of `_Forms`; unchanged if the text is not Python."""
    tree = _parsed(text)
    if tree is None:
        return text
    match tree:
        case ast.Lambda(args=ast.arguments(args=[ast.arg(arg=row)]), body=body):
            tree, rows = body, [row]
            text = ast.unparse(body)
    try:
        before = ast.dump(tree)
        after = _Forms(rows, joins=joins).visit(tree)
        return text if ast.dump(after) == before else ast.unparse(after)
    except RecursionError:
        return text


class _Forms(ast.NodeTransformer):
    """Replaces methods of Python, pandas and Polars by functions and operators, and f-strings by
    sums. `rows` are names of rows, whose fields are columns. `joins` says whether the original text
    has `||`, which joins texts in SQL."""

    def __init__(self, rows: Sequence[str], *, joins: bool) -> None:
        self._rows, self._joins = rows, joins

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        is_row = isinstance(node.value, ast.Name) and node.value.id in self._rows
        return ast.Name(node.attr) if is_row else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Subscript(value=ast.Name(id=row), slice=ast.Constant(value=str())):
                return _column(node.slice) if row in self._rows else node
            case ast.Subscript(ast.Name(row), ast.Compare() | ast.BoolOp() as condition):
                return condition if row in (*self._rows, "loc") else node
        return node

    def visit_Set(self, node: ast.Set) -> ast.expr:
        return ast.List(node.elts)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(
                ast.Name("any" | "all" as quantor),
                [ast.GeneratorExp(part, [ast.comprehension(ast.Name(item), source, [])])],
            ) if isinstance(source, ast.List | ast.Tuple):
                parts = [_Filled({item: each}).visit(deepcopy(part)) for each in source.elts]
                operator = ast.Or() if quantor == "any" else ast.And()
                joined: ast.expr = self.visit(ast.BoolOp(operator, parts))
                return joined
        self.generic_visit(node)
        options = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
        is_literal = options.get("regex") is False or options.get("literal") is True
        ignores_case = options.pop("case", True) is False
        if not options.keys() <= {*_NO_EFFECT} or options.get("na", False) is not False:
            return node
        called = _MODULES.sub("", ast.unparse(node.func).lower())
        if not ignores_case and (form := _form(called, *node.args)):
            return form
        if not isinstance(node.func, ast.Attribute):
            return node
        value, name, arguments = _without_accessor(node.func.value), node.func.attr, node.args
        may_be_pattern = not is_literal and any(map(_is_pattern, arguments))
        if name == "contains" and may_be_pattern and value is not node.func.value:
            name = "matches"  # contains() of pandas and Polars searches a pattern
        if ignores_case and may_be_pattern:
            return _in_any_case(name, value, arguments)
        if ignores_case:
            value, arguments = _call("lower", value), list(map(_in_lower_case, arguments))
        return _form(name, value, *arguments) or node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Replace `~` by `not`, and omit `+`. A negation with `na=False` has no translation,
        because it is true for null."""
        names = {each.arg for each in ast.walk(node) if isinstance(each, ast.keyword)}
        if "na" in names:
            return _UNKNOWN
        self.generic_visit(node)
        result = ast.UnaryOp(ast.Not(), node.operand) if isinstance(node.op, ast.Invert) else node
        return node.operand if isinstance(node.op, ast.UAdd) else result

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Replace `&` by `and`, `|` by `or`, and `a ** 2` by `a * a`."""
        self.generic_visit(node)
        match node:
            case ast.BinOp(left, ast.BitAnd(), right):
                return ast.BoolOp(ast.And(), [left, right])
            case ast.BinOp(left, ast.BitOr(), right):
                return ast.BoolOp(ast.Or(), [left, right])
            case ast.BinOp(ast.Name() as base, ast.Pow() | ast.BitXor(), ast.Constant(2)):
                return ast.BinOp(base, ast.Mult(), base)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Replace operators. `||` between two columns has no translation.

        - `'x' || a` -> `'x' + str(a)`
        - `a == 1 or 2` -> `a in [1, 2]`
        - `'x' or 'y' in a` -> `contains(a, 'x') or contains(a, 'y')`
        """
        self.generic_visit(node)
        match node.values:
            case [*texts, ast.Call(ast.Name("contains"), [column, _]) as last] if all(
                isinstance(text, ast.Constant) and isinstance(text.value, str) for text in texts
            ):
                return ast.BoolOp(node.op, [*(_call("contains", column, t) for t in texts), last])
        if isinstance(node.op, ast.And):
            return node
        if self._joins:
            if any(isinstance(each, ast.Constant) for each in node.values):
                return _sum(*node.values)
            return _UNKNOWN if all(isinstance(each, _VALUES) for each in node.values) else node
        match node.values:
            case [ast.Compare(ops=[ast.Eq()]) as first, *others]:
                values = [*first.comparators, *others]
                if all(isinstance(each, ast.Constant) for each in values):
                    return _compare(first.left, ast.In(), ast.List(values))
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Replace `'text' in column`, and comparisons that expressions write differently."""
        called = ast.unparse(node.left.func) if isinstance(node.left, ast.Call) else ""
        self.generic_visit(node)
        if len(node.ops) > 1:
            return node
        left, (operator,), (right,) = node.left, node.ops, node.comparators
        match operator, left, right:
            case ast.Is() | ast.IsNot(), _, ast.Constant(None) if called in _SEARCHES:
                return left if isinstance(operator, ast.IsNot) else ast.UnaryOp(ast.Not(), left)
            case ast.In() | ast.NotIn(), ast.Constant(str()), right if isinstance(right, _VALUES):
                call = _call("contains", right, left)
                return call if isinstance(operator, ast.In) else ast.UnaryOp(ast.Not(), call)
            case ast.Eq(), ast.Subscript(), ast.Constant(str(text)):
                return _compared_part(left, text) or node
        return _searched(left, operator, right) or _compared(left, operator, right) or node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts: list[ast.expr] = []
        for part in node.values:
            if not isinstance(part, ast.FormattedValue):
                parts.append(part)
            elif part.conversion != -1 or part.format_spec is not None:
                return node
            else:
                parts.append(self.visit(part.value))
        return _sum(*parts) if parts else ast.Constant("")


def _searched(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> ast.expr | None:
    """Return the translation of a search; None for other comparisons. A search is `in range(...)`,
    `in` with one value, `== (a or b)`, or a comparison of `find()`."""
    match operator, left, right:
        case ast.In(), _, ast.Call(ast.Name("range"), [first, end]):
            return ast.Compare(first, [ast.LtE(), ast.Lt()], [left, end])
        case ast.In(), ast.Name(), ast.Constant(str() | int()):
            return _compare(left, operator, ast.List([right]))
        case ast.Eq(), _, ast.BoolOp(ast.Or(), values):
            are_constant = all(isinstance(each, ast.Constant) for each in values)
            return _compare(left, ast.In(), ast.List(values)) if are_constant else None
        case _, ast.Call(
            ast.Attribute(value, "find" | "indexOf"), [ast.Constant(str()) as text]
        ), _:
            call, sign = _call("contains", value, text), ast.unparse(right)
            if (type(operator), sign) in ((ast.GtE, "0"), (ast.NotEq, "-1"), (ast.Gt, "-1")):
                return call
            absent = (type(operator), sign) in ((ast.Lt, "0"), (ast.Eq, "-1"))
            return ast.UnaryOp(ast.Not(), call) if absent else None
    return None


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> ast.expr | None:
    """Return the translation of `a == None`, `a != nan`, `a is 'x'` and the like, or None."""
    is_equal = isinstance(operator, ast.Eq | ast.Is)
    match operator, right:
        case ast.Eq() | ast.NotEq(), ast.Constant(None):
            return _compare(left, ast.Is() if is_equal else ast.IsNot(), right)
        case ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot(), _ if ast.unparse(right) in _NAN:
            is_null = _compare(left, ast.Is() if is_equal else ast.IsNot(), ast.Constant(None))
            is_nan = _compare(left, ast.NotEq() if is_equal else ast.Eq(), left)
            return ast.BoolOp(ast.Or() if is_equal else ast.And(), [is_null, is_nan])
        case ast.Is() | ast.IsNot(), ast.Constant(str() | int() | float() as value):
            if is_equal or not isinstance(value, bool):  # `is not True` is true for null
                return _compare(left, ast.Eq() if is_equal else ast.NotEq(), right)
    return None


def _form(name: str, *arguments: ast.expr) -> ast.expr | None:
    """Return the translation of a call, or None. For a method, the first argument is its object."""
    name = name.replace("_", "").lower()
    if name in _MAKERS:
        return _MAKERS[name](*arguments) if len(arguments) in _MAKER_COUNTS[name] else None
    template = _TEMPLATES.get((name, len(arguments)))
    values = dict(zip("XYZ", arguments, strict=False))
    return _Filled(values).visit(ast.parse(template, mode="eval").body) if template else None


class _Filled(ast.NodeTransformer):
    """Replaces names, such as X, Y and Z in a template, by expressions."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._values.get(node.id, node)


def _compared_part(part: ast.Subscript, text: str) -> ast.expr | None:
    """Return startswith() for `a[:2] == 'xy'`, endswith() for `a[-2:] == 'xy'`, or None."""
    size, items = len(text), ast.unparse(part.slice)
    if items in (f":{size}", f"0:{size}") or (items, size) == ("0", 1):
        return _call("startswith", part.value, ast.Constant(text))
    if items == f"-{size}:" or (items, size) == ("-1", 1):
        return _call("endswith", part.value, ast.Constant(text))
    return None


def _in_lower_case(node: ast.expr) -> ast.expr:
    value = node.value if isinstance(node, ast.Constant) else None
    return ast.Constant(value.lower()) if isinstance(value, str) else node


def _in_any_case(name: str, value: ast.expr, patterns: Sequence[ast.expr]) -> ast.expr:
    """Return a call of matches() that ignores case; `_UNKNOWN` for any other call."""
    match name, patterns:
        case "matches", [ast.Constant(value=str(pattern))]:
            return _call("matches", value, ast.Constant(f"(?i){pattern}"))
    return _UNKNOWN


def _sum(*parts: ast.expr) -> ast.expr:
    """Return the concatenation of all parts as texts."""
    texts = [part if isinstance(part, ast.Constant) else _call("str", part) for part in parts]
    result, *others = texts
    for text in others:
        result = ast.BinOp(result, ast.Add(), text)
    return result


def _is_pattern(node: ast.expr) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, str) and not _NO_PATTERN.fullmatch(value)


def _without_accessor(value: ast.expr) -> ast.expr:
    is_accessor = isinstance(value, ast.Attribute) and value.attr in ("str", "list")
    return value.value if isinstance(value, ast.Attribute) and is_accessor else value


def _call(function: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(function), list(arguments), [])


def _compare(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> ast.expr:
    return ast.Compare(left, [operator], [right])


def _converted(value: ast.expr, kind: ast.expr) -> ast.expr:
    """Return a conversion to the type `kind`, such as `str` or `'int64'`."""
    name = kind.value if isinstance(kind, ast.Constant) else ast.unparse(kind).rpartition(".")[2]
    return _call(_TYPES.get(re.sub(r"\d+$", "", str(name).lower()), "unknown"), value)


def _any_of(function: str) -> Callable[..., ast.expr]:
    """Return a function that makes a call of `function`, or several joined by `or` for a list."""

    def made(value: ast.expr, texts: ast.expr) -> ast.expr:
        parts = texts.elts if isinstance(texts, ast.Tuple | ast.List) else [texts]
        calls: list[ast.expr] = [_call(function, value, part) for part in parts]
        return ast.BoolOp(ast.Or(), calls) if len(calls) > 1 else calls[0]

    return made


def _beginning(value: ast.expr, pattern: ast.expr) -> ast.expr:
    """Return the translation of re.match(): a call of matches() with `^` before the pattern."""
    if not (isinstance(pattern, ast.Constant) and isinstance(pattern.value, str)):
        return _UNKNOWN
    text = pattern.value if _NO_PATTERN.fullmatch(pattern.value) else f"(?:{pattern.value})"
    return _call("matches", value, ast.Constant(f"^{text}"))


def _like(value: ast.expr, pattern: ast.expr) -> ast.expr:
    """Return the translation of LIKE with a pattern such as 'a%'."""
    text = str(getattr(pattern, "value", ""))
    if not (parts := _LIKE.fullmatch(text)):
        signs = re.findall(r"\\.|[^\\]", text)  # \% is a percent sign
        search = "".join({"%": ".*", "_": "."}.get(one) or re.escape(one[-1]) for one in signs)
        begin, end = "" if signs[:1] == ["%"] else "^", "" if signs[-1:] == ["%"] else "$"
        written = f"{begin}{search.removeprefix('.*').removesuffix('.*')}{end}"
        return _call("matches", value, ast.Constant(written)) if text.strip("%") else _UNKNOWN
    before, inner, after = parts.groups()
    if not (before or after):
        return _compare(value, ast.Eq(), ast.Constant(inner))
    function = {("%", "%"): "contains", ("", "%"): "startswith"}.get((before, after), "endswith")
    return _call(function, value, ast.Constant(inner))


def _substring(value: ast.expr, start: ast.expr, size: ast.expr) -> ast.expr:
    """Return `value[:size]` if `start` is 0, or 1 as in SQL; `_UNKNOWN` for any other start."""
    first = getattr(start, "value", None)
    return ast.Subscript(value, ast.Slice(None, size)) if first in (0, 1) else _UNKNOWN


def _time(*parts: ast.expr) -> ast.expr:
    """Return a date or time as a text; `_UNKNOWN` if it is neither a text nor three integers."""
    values = [getattr(part, "value", None) for part in parts]
    match values:
        case [str(), *_]:
            return parts[0]
        case [int(year), int(month), int(day)]:
            return ast.Constant(f"{year}-{month:02}-{day:02}")
    return _UNKNOWN


def _column(name: ast.expr) -> ast.expr:
    if isinstance(name, ast.Constant) and str(name.value).isidentifier():
        return ast.Name(str(name.value))
    return _call("col", name)


_TYPES = {
    **dict.fromkeys(("int", "integer", "bigint", "signed"), "int"),
    **dict.fromkeys(("float", "double", "real"), "float"),
    **dict.fromkeys(("str", "string", "text", "varchar", "char", "utf"), "str"),
}
"""Functions that convert to a type, by its name in other languages without the number of bits."""
_FORMS = {
    "len(X)": "len lenght length size lenchars charlength strlen",
    "lower(X)": "lower lcase casefold tolower tolowercase",
    "upper(X)": "upper ucase toupper touppercase",
    "strip(X)": "strip trim btrim",
    "abs(X)": "abs fabs",
    "int(X)": "int",
    "float(X)": "float tonumeric tonumber parsefloat",
    "round(X)": "round",
    "round(X, Y)": "round around",
    "contains(X, Y)": "contains includes has",
    "matches(X, Y)": "matches rlike regexp regexplike regexpmatches regexpcontains regex",
    "matches(Y, X)": "re.search",
    "X is None": "isnull isna isnone",
    "X is not None": "notnull notna isnotnull isnotna exists",
    "X == ''": "empty isempty",
    "X != ''": "notempty isnotempty",
    "X != X": "isnan",
    "X if X is not None else Y": "coalesce ifnull isnull nvl fillna fillnull",
    "matches(X, '^[0-9]+$')": "isdigit isnumeric isdecimal",
    "X if X > Y else Y": "max greatest maximum",
    "X if X < Y else Y": "min least minimum",
    "Y if X else Z": "iff iif where",
    **{"X % Y": "mod", "X == Y": "eq equals", "X != Y": "ne", "X > Y": "gt", "X < Y": "lt"},
    "X in Y": "isin",
    "Y <= X <= Z": "between",
    "X[Y]": "get",
    "X[:Y]": "left",
    "X[-Y:]": "right",
}
"""Templates, and the functions and methods that they replace, in lower case without `_`. X is the
first argument, or the object of the method."""
_TEMPLATES = {
    (name, len({*re.findall(r"\b[XYZ]\b", template)})): template
    for template, names in _FORMS.items()
    for name in names.split()
}
_TIMES = ("date", "timestamp", "datetime", "todate", "totimestamp", "todatetime")
_MAKERS: dict[str, Callable[..., ast.expr]] = {
    **{"astype": _converted, "cast": _converted, "like": _like},
    "ilike": lambda value, pattern: _like(_call("lower", value), _in_lower_case(pattern)),
    **{"match": _beginning, "re.match": lambda pattern, value: _beginning(value, pattern)},
    **{name: _any_of(name) for name in ("startswith", "endswith")},
    **{"col": _column, "column": _column, "concat": _sum},
    **dict.fromkeys(_TIMES, _time),
    **dict.fromkeys(("substr", "substring"), _substring),
}
"""Functions that make the translations without a template, by function or method."""
_MAKER_COUNTS = {
    **dict.fromkeys(_MAKERS, (2,)),
    **{"col": (1,), "column": (1,), "concat": tuple(range(2, 9))},
    **dict.fromkeys(_TIMES, (1, 2, 3)),
    **dict.fromkeys(("substr", "substring"), (3,)),
}
"""The numbers of arguments with which a function of _MAKERS is translated."""
