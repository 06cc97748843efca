"""Translates SQL, pandas and general Python into the expression language, for messages.

The result is a guess: `spec.expression` shows it only if it is a valid expression.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Callable, Sequence

_STRING = re.compile(r"('[^']*'|\"[^\"]*\")")
_WORDS = {
    **{word: word for word in ("and", "or", "not", "in", "is", "if", "else")},
    **{"null": "None", "none": "None", "true": "True", "false": "False"},
}
"""Words in any case, as Python writes them."""
_BITS = re.compile(r"(?<![&|])[&|](?![&|])")
_JOINED = re.compile(
    r"\b(?:and|or)\b|(?<!is )\bnot\b(?! in\b| i?like\b| between\b)|&&|\|\|", re.IGNORECASE
)
"""Words whose precedence differs from that of `&` and `|`."""
_PREFIX = r"^(?:filter|where) (?=[^\W\d]\w* *[.=!<>])"
_ARROW = re.compile(r"^\(?([^\W\d]\w*)\)? ?=> ?(?=.*\b\1[.\[])")
_LITERALS = (
    (r"(?<![\w.-])(\d{4}-\d\d-\d\d)(?![\w-])", r"'\1'"),
    (r"(?<=[<>] )0+(?=[1-9]\d*(?![\w.]))", ""),
)
"""Dates without quotes, and numbers with zeros before them."""
_OPERATORS = (
    (r"(?<!=)=!(?!=)|!\s+=(?!=)", " != "),
    (r"!==", " != "),
    (r"=([<>])", r" \1= "),
    (r"[$@:]?\{+\s*(\w+)\s*\}+|[$@](?=\w)", r"\1"),
    (r"`([^`]+)`", r"\1"),
    (r";\s*(?=\S)", " and "),
    (r"~(?=\s*(?:\(|[\w.]+\(|[^\W\d]\w*\s*(?:$|[)&|])))|!(?!=)", " not "),
    (r"&&?", " and "),
    (r"\|\|?", " or "),
    (r"<>", " != "),
    (r"===", "=="),
    (r"(?<![=!<>])(?<!\bna)(?<!\bcase)(?<!\bregex)(?<!\bliteral)=(?![=<>])", "=="),
    (rf"\.({'|'.join(keyword.kwlist)})\b", r"['\1']"),
    (r"[^\S\n]+", " "),
)
_OPERAND = r"(?<![-+*/%.\w])(?<![-+*/%] )([^\W\d][\w.]*(?:\([\w.]+\))?)"
_LIKE = re.compile(rf"{_OPERAND} (not )?(i?)like '(%?)([^'%_\\]+)(%?)'", re.IGNORECASE)
_BETWEEN = re.compile(rf"{_OPERAND} (not )?between ([\w.]+) and ([\w.]+)", re.IGNORECASE)
_CALL_BETWEEN = re.compile(
    rf"{_OPERAND} (not )?(rlike|regexp|=?~|matches|contains|starts ?with|ends ?with) ('[^']*')",
    re.IGNORECASE,
)
_CAST = re.compile(rf"\bcast\({_OPERAND} as (\w+)\)|{_OPERAND}::(\w+)", re.IGNORECASE)
_TERNARY = re.compile(r"(.+?) \? (.+) : (.+)")
_WORD_CALL = re.compile(r"^(len|lower|upper|length) ([^\W\d]\w*)(?= |$)", re.IGNORECASE)
_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201c\u201d", "'"),
        **{"\u2265": ">=", "\u2264": "<=", "\u2260": "!="},
    }
)
"""The quotes and signs of texts that a word processor has changed."""
ROWS = ("df", "row", "batch", "record")
"""Names of tables and rows in other languages, in which a column has a field."""
_NO_EFFECT = ("na", "regex", "literal")
"""Keyword arguments of pandas and Polars that the expression language does not need."""
_DOUBLED = re.compile(r"'[^']*(?:''[^']*)+'")
"""A text of SQL with quotes in it."""
_NO_PATTERN = re.compile(r"[\w\s,;:!@#%&='\"<>/~`-]*")
"""A text that means the same as a regular expression."""
_CASE = re.compile(r"\bcase when (.+) then (.+) else (.+) end\b", re.IGNORECASE)
_IF = re.compile(r"\bif ?\(", re.IGNORECASE)
_TYPES = {
    **dict.fromkeys(("int", "integer", "bigint", "int64", "signed"), "int"),
    **dict.fromkeys(("float", "double", "real", "float64"), "float"),
    **dict.fromkeys(("str", "string", "text", "varchar", "char", "utf8"), "str"),
}
"""The function that converts to a type of SQL, pandas or Polars."""
_LIKE_FUNCTIONS = {("%", "%"): "contains", ("", "%"): "startswith", ("%", ""): "endswith"}
_NULL = re.compile(r"(==|!=) None\b")
_NO_NAMES = (
    *keyword.kwlist,
    *_WORDS,
    "like",
    "ilike",
    "between",
    "select",
    "where",
    "case",
    "when",
    *("xor", "of", "mod", "div", "contains", "startswith", "endswith", "matches", "equals", "than"),
)
_WORD = rf"(?!(?:{'|'.join(_NO_NAMES)})\b)\w+"
_SPACED = re.compile(rf"(?<![\w.])(?!\d){_WORD}(?: {_WORD})+", re.IGNORECASE)


def translated(text: str, rows: Sequence[str] = ROWS) -> str:
    """Return an expression with the operators, words and methods of this language, as far as they
    are known. It may be invalid. `rows` are names of rows and tables."""
    if (words := _with_words(text)) is None:
        return text
    text = _ARROW.sub(r"lambda \1: ", re.sub(_PREFIX, "", words, flags=re.IGNORECASE))
    text = _DOUBLED.sub(lambda match: repr(match[0][1:-1].replace("''", "'")), text)
    text = text if _STRING.search(text) else text.translate(_SYMBOLS)
    text = text if re.search(r"[(\[]", text) else re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    guess = _BETWEEN.sub(r"\2\3 <= \1 <= \4", _LIKE.sub(_like, _WORD_CALL.sub(r"\1(\2)", text)))
    guess = _IF.sub("iff(", _CALL_BETWEEN.sub(_call_between, _CAST.sub(_cast, guess)))
    guess = _TERNARY.sub(r"iff(\1, \2, \3)", _CASE.sub(r"iff(\1, \2, \3)", guess))
    guess = "".join(map(_code, _STRING.split(guess))).strip()
    if _parsed(guess) is None:
        guess = "".join(map(_named, _STRING.split(guess)))
    return _with_functions(guess, rows, joins="||" in text)


def _with_words(text: str) -> str | None:
    """Return an expression with `and` and `or` for `&` and `|` if it has both; None if it is
    unknown what belongs together."""
    code = _STRING.sub("''", text)
    if not (_BITS.search(code) and _JOINED.search(code)):
        return text
    tree = _parsed(text)
    return None if tree is None else ast.unparse(_Words().visit(tree))


class _Words(ast.NodeTransformer):
    """Replaces `&`, `|` and `~` by `and`, `or` and `not`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        operator = {ast.BitAnd: ast.And, ast.BitOr: ast.Or}.get(type(node.op))
        return ast.BoolOp(operator(), [node.left, node.right]) if operator else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return ast.UnaryOp(ast.Not(), node.operand) if isinstance(node.op, ast.Invert) else node


def _like(match: re.Match[str]) -> str:
    operand, negated, ignores_case, before, text, after = match.groups()
    if ignores_case:
        operand, text = f"lower({operand})", text.lower()
    function = _LIKE_FUNCTIONS.get((before, after))
    if function is None:
        return f"{operand} {'!=' if negated else '=='} '{text}'"
    return f"{negated or ''}{function}({operand}, '{text}')"


def _call_between(match: re.Match[str]) -> str:
    operand, negated, name, text = match.groups()
    name = name.lower().replace(" ", "")
    function = name if name in ("contains", "startswith", "endswith") else "matches"
    return f"{negated or ''}{function}({operand}, {text})"


def _cast(match: re.Match[str]) -> str:
    function = _TYPES.get((match[2] or match[4]).lower())
    return f"{function}({match[1] or match[3]})" if function else match[0]


def _code(part: str) -> str:
    """Return a part of an expression with the operators of Python, unless it is a string."""
    if _STRING.fullmatch(part):
        return part
    for pattern, replacement in (*_LITERALS, *_OPERATORS):
        part = re.sub(pattern, replacement, part)
    part = re.sub(r"(?<![.\w])\w+", lambda found: _WORDS.get(found[0].lower(), found[0]), part)
    return _NULL.sub(lambda found: f"is {'not ' if found[1] == '!=' else ''}None", part)


def _named(part: str) -> str:
    """Return a part of an expression with col('NAME') for names with spaces, or with a text for
    words after == and !=."""

    def name(match: re.Match[str]) -> str:
        is_text = part[: match.start()].rstrip().endswith(("==", "!="))
        return repr(match[0]) if is_text else f"col({match[0]!r})"

    return part if _STRING.fullmatch(part) else _SPACED.sub(name, part)


def _parsed(text: str) -> ast.expr | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _with_functions(text: str, rows: Sequence[str], *, joins: bool) -> str:
    tree = _parsed(text)
    if tree is None:
        return text
    match tree:
        case ast.Lambda(args=ast.arguments(args=[ast.arg(arg=row)]), body=body):
            tree, rows = body, [row]
            text = ast.unparse(body)
    try:
        before = ast.dump(tree)
        after = _Functions(rows, joins=joins).visit(tree)
        return text if ast.dump(after) == before else ast.unparse(after)
    except RecursionError:
        return text


_NAN = ("NaN", "nan", "np.nan", "math.nan")
_VALUES = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_UNKNOWN = ast.Call(ast.Name("unknown"), [], [])
"""What has no translation: a function that the expression language does not have."""


class _Functions(ast.NodeTransformer):
    """Replaces methods of Python, pandas and Polars by functions and operators, and f-strings by
    sums. `rows` are names of rows, whose fields are columns. `joins` says whether the text has
    `||`, which joins texts in SQL."""

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
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        options = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
        is_literal = options.get("regex") is False or options.get("literal") is True
        ignores_case = options.pop("case", True) is False
        if not options.keys() <= {*_NO_EFFECT} or options.get("na", False) is not False:
            return node
        if ignores_case and isinstance(node.func, ast.Attribute):
            value = _without_accessor(node.func.value)
            if not is_literal and any(map(_is_pattern, node.args)):
                return _in_any_case(node.func.attr, value, node.args)
            node.func.value = ast.Attribute(_call("lower", value), "str")
            node.args = [_in_lower_case(each) for each in node.args]
        count = len(node.args)
        if made := _CALLS.get((ast.unparse(node.func).lower(), count)):
            return made(*node.args)
        if not isinstance(node.func, ast.Attribute):
            return node
        value, name = _without_accessor(node.func.value), node.func.attr
        made = _METHODS.get((name, count))
        is_pandas = value is not node.func.value and not is_literal
        if name == "contains" and count == 1 and is_pandas and _is_pattern(node.args[0]):
            return _call("matches", value, node.args[0])  # as in pandas and Polars
        return made(value, *node.args) if made else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Replace the operand; unknown if it has `na=False`, which is true for null under `not`."""
        names = {each.arg for each in ast.walk(node) if isinstance(each, ast.keyword)}
        return _UNKNOWN if "na" in names else self.generic_visit(node)  # type: ignore[return-value]

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Replace the square of a column."""
        self.generic_visit(node)
        match node:
            case ast.BinOp(ast.Name() as base, ast.Pow(), ast.Constant(2)):
                return ast.BinOp(base, ast.Mult(), base)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Replace `||` of SQL by a sum if one side is a text. If it is unknown whether the sides
        are texts or conditions, there is no translation."""
        self.generic_visit(node)
        if not (self._joins and isinstance(node.op, ast.Or)):
            return _as_list(node)
        if any(isinstance(each, ast.Constant) for each in node.values):
            return _sum(node.values)
        return _UNKNOWN if all(isinstance(each, _VALUES) for each in node.values) else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Replace `'text' in column`, and comparisons that this language writes otherwise."""
        called = ast.unparse(node.left.func) if isinstance(node.left, ast.Call) else ""
        self.generic_visit(node)
        match node:
            case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(None)]) if (
                called in ("re.search", "re.match")
            ):
                is_not = isinstance(node.ops[0], ast.IsNot)
                return node.left if is_not else ast.UnaryOp(ast.Not(), node.left)
            case ast.Compare(ops=[ast.Eq() | ast.NotEq()], comparators=[other]) if (
                ast.unparse(other) in _NAN
            ):
                operator = ast.NotEq() if isinstance(node.ops[0], ast.Eq) else ast.Eq()
                return _compare(node.left, operator, node.left)
            case ast.Compare(
                left=ast.Subscript(value=value, slice=part),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=str(text))],
            ):
                size, items = len(text), ast.unparse(part)
                if items in (f":{size}", f"0:{size}"):
                    return _call("startswith", value, *node.comparators)
                if items == f"-{size}:" or (items, size) == ("-1", 1):
                    return _call("endswith", value, *node.comparators)
            case ast.Compare(
                ops=[ast.Is()], comparators=[ast.Constant(value=bool() | str() | int() | float())]
            ):
                return _compare(node.left, ast.Eq(), node.comparators[0])
            case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=other)]) if (
                isinstance(other, str | int | float) and not isinstance(other, bool)
            ):
                return _compare(node.left, ast.NotEq(), node.comparators[0])
            case ast.Compare(
                left=ast.Constant(value=str()),
                ops=[ast.In() | ast.NotIn()],
                comparators=[ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call()],
            ):
                found = _call("contains", node.comparators[0], node.left)
                return found if isinstance(node.ops[0], ast.In) else ast.UnaryOp(ast.Not(), found)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts: list[ast.expr] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.conversion != -1 or part.format_spec is not None:
                    return node
                parts.append(_call("str", self.visit(part.value)))
            else:
                parts.append(part)
        return _sum(parts) if parts else ast.Constant("")


def _as_list(node: ast.BoolOp) -> ast.expr:
    """Return `a in [1, 2]` for `a == 1 or 2`."""
    match node:
        case ast.BoolOp(ast.Or(), [ast.Compare(ops=[ast.Eq()]) as first, *others]):
            values = [*first.comparators, *others]
            if all(isinstance(each, ast.Constant) for each in values):
                return _compare(first.left, ast.In(), ast.List(values))
    return node


def _in_lower_case(node: ast.expr) -> ast.expr:
    value = node.value if isinstance(node, ast.Constant) else None
    return ast.Constant(value.lower()) if isinstance(value, str) else node


def _in_any_case(name: str, value: ast.expr, patterns: Sequence[ast.expr]) -> ast.expr:
    """Return a search of a regular expression that ignores case."""
    match name, patterns:
        case "contains", [ast.Constant(value=str(pattern))]:
            return _call("matches", value, ast.Constant(f"(?i){pattern}"))
    return _UNKNOWN


def _sum(parts: Sequence[ast.expr]) -> ast.expr:
    result, *others = parts
    for part in others:
        result = ast.BinOp(result, ast.Add(), part)
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


def _is_none(value: ast.expr) -> ast.expr:
    return _compare(value, ast.Is(), ast.Constant(None))


def _is_not_none(value: ast.expr) -> ast.expr:
    return _compare(value, ast.IsNot(), ast.Constant(None))


def _or_default(value: ast.expr, default: ast.expr) -> ast.expr:
    return ast.IfExp(_is_not_none(value), value, default)


def _converted(value: ast.expr, kind: ast.expr) -> ast.expr:
    """Return a conversion to the type that `kind` names, such as `str` or `'int64'`."""
    name = kind.value if isinstance(kind, ast.Constant) else ast.unparse(kind).rpartition(".")[2]
    return _call(_TYPES.get(str(name).lower(), "unknown"), value)


def _any_of(function: str) -> Callable[..., ast.expr]:
    """Return a function that makes a call, or one for each text of a tuple."""

    def made(value: ast.expr, texts: ast.expr) -> ast.expr:
        parts = texts.elts if isinstance(texts, ast.Tuple) else [texts]
        calls: list[ast.expr] = [_call(function, value, part) for part in parts]
        return ast.BoolOp(ast.Or(), calls) if len(calls) > 1 else calls[0]

    return made


def _beginning(value: ast.expr, pattern: ast.expr) -> ast.expr:
    """Return a search of a regular expression at the beginning of a text."""
    if not (isinstance(pattern, ast.Constant) and isinstance(pattern.value, str)):
        return _UNKNOWN
    text = pattern.value if _NO_PATTERN.fullmatch(pattern.value) else f"(?:{pattern.value})"
    return _call("matches", value, ast.Constant(f"^{text}"))


def _larger(one: ast.expr, other: ast.expr) -> ast.expr:
    return ast.IfExp(_compare(one, ast.Gt(), other), one, other)


def _smaller(one: ast.expr, other: ast.expr) -> ast.expr:
    return ast.IfExp(_compare(one, ast.Lt(), other), one, other)


def _is_nan(value: ast.expr) -> ast.expr:
    return _compare(value, ast.NotEq(), value)


def _column(name: ast.expr) -> ast.expr:
    if isinstance(name, ast.Constant) and str(name.value).isidentifier():
        return ast.Name(str(name.value))
    return _call("col", name)


def _function(name: str) -> Callable[..., ast.expr]:
    return lambda *arguments: _call(name, *arguments)


_METHODS: dict[tuple[str, int], Callable[..., ast.expr]] = {
    **{(name, 0): _function(name) for name in ("len", "lower", "upper", "strip", "abs")},
    **{(name, 1): _function(name) for name in ("contains", "matches")},
    ("includes", 1): _function("contains"),
    **{(name, 0): _function("len") for name in ("length", "size", "len_chars")},
    **{(name, 0): _function("lower") for name in ("casefold", "to_lowercase", "toLowerCase")},
    **{(name, 1): _any_of("startswith") for name in ("startswith", "starts_with", "startsWith")},
    **{(name, 1): _any_of("endswith") for name in ("endswith", "ends_with", "endsWith")},
    **{(name, 0): _function("upper") for name in ("to_uppercase", "toUpperCase")},
    ("trim", 0): _function("strip"),
    ("match", 1): _beginning,
    **{(name, 0): _is_none for name in ("isnull", "isna", "is_null", "isNull")},
    **{(name, 0): _is_not_none for name in ("notnull", "notna", "is_not_null", "isNotNull")},
    **{(name, 1): _or_default for name in ("fillna", "fill_null")},
    **{(name, 1): _converted for name in ("astype", "cast")},
    **{
        (name, 1): lambda value, values: _compare(value, ast.In(), values)
        for name in ("isin", "is_in")
    },
    ("between", 2): lambda value, low, high: ast.Compare(
        low, [ast.LtE(), ast.LtE()], [value, high]
    ),
    **{("round", count): _function("round") for count in (0, 1)},
    ("get", 1): ast.Subscript,
}
"""What a method becomes, by its name and number of arguments."""
_CALLS: dict[tuple[str, int], Callable[..., ast.expr]] = {
    **{(name, 1): _function(name) for name in ("lower", "upper", "strip", "abs", "int", "float")},
    **{
        (name, 1): _function("len")
        for name in ("len", "lenght", "length", "char_length", "strlen", "size")
    },
    **{(name, 1): _is_nan for name in ("isnan", "np.isnan", "math.isnan")},
    **{(name, 2): _larger for name in ("max", "greatest", "np.maximum")},
    **{(name, 2): _smaller for name in ("min", "least", "np.minimum")},
    ("re.match", 2): lambda pattern, value: _beginning(value, pattern),
    ("startswith", 2): _any_of("startswith"),
    ("endswith", 2): _any_of("endswith"),
    **{(name, 1): _function("strip") for name in ("trim", "btrim")},
    **{(name, 1): _function("lower") for name in ("lcase", "str.lower")},
    **{(name, 1): _function("upper") for name in ("ucase", "str.upper")},
    **{(name, 1): _is_none for name in ("isnull", "isna", "pd.isna", "pd.isnull")},
    **{(name, 1): _is_not_none for name in ("notnull", "notna", "pd.notna", "pd.notnull")},
    **{(name, 2): _or_default for name in ("coalesce", "ifnull", "nvl", "fillna")},
    **{(name, 3): ast.IfExp for name in ("iff", "iif", "np.where")},
    ("re.search", 2): lambda pattern, value: _call("matches", value, pattern),
    **{
        (name, 2): _function("matches")
        for name in ("regexp_like", "regexp_matches", "regexp_contains", "regex")
    },
    **{(name, 1): _column for name in ("pl.col", "f.col", "column")},
    **{(name, 2): _function("startswith") for name in ("starts_with", "str.startswith")},
    **{(name, 2): _function("endswith") for name in ("ends_with", "str.endswith")},
    **{(name, 1): _function("abs") for name in ("np.abs", "math.fabs")},
    **{(name, 2): _function("round") for name in ("round", "np.round", "np.around")},
    ("mod", 2): lambda left, right: ast.BinOp(left, ast.Mod(), right),
    **{("concat", count): lambda *parts: _sum(parts) for count in range(2, 9)},
}
"""What a function of SQL, pandas, NumPy or Polars becomes, by its name and number of arguments."""
