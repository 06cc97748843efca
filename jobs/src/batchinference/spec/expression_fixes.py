"""Translates SQL, pandas and general Python into the expression language, for messages.

The result is a guess: `spec.expression` shows it only if it is a valid expression.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Callable

_STRING = re.compile(r"('[^']*'|\"[^\"]*\")")
_WORDS = {
    **{word: word for word in ("and", "or", "not", "in", "is", "if", "else")},
    **{"null": "None", "none": "None", "true": "True", "false": "False"},
}
"""Words in any case, as Python writes them."""
_OPERATORS = (
    (r"~(?=\s*(?:\(|\w+\(|[^\W\d]\w*\s*(?:$|[)&|])))|!(?!=)", " not "),
    (r"&&?", " and "),
    (r"\|\|?", " or "),
    (r"<>", " != "),
    (r"===", "=="),
    (r"(?<![=!<>])=(?![=<>])", "=="),
    (rf"\.({'|'.join(keyword.kwlist)})\b", r"['\1']"),
    (r"[^\S\n]+", " "),
)
_OPERAND = r"([^\W\d][\w.]*(?:\([\w.]+\))?)"
_LIKE = re.compile(rf"{_OPERAND} (not )?like '(%?)([^'%_\\]+)(%?)'", re.IGNORECASE)
_BETWEEN = re.compile(rf"{_OPERAND} between ([\w.]+) and ([\w.]+)", re.IGNORECASE)
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
)
_WORD = rf"(?!(?:{'|'.join(_NO_NAMES)})\b)\w+"
_SPACED = re.compile(rf"(?<![\w.])(?!\d){_WORD}(?: {_WORD})+", re.IGNORECASE)


def translated(text: str) -> str:
    """Return an expression with the operators, words and methods of this language, as far as they
    are known. It may be invalid."""
    guess = _BETWEEN.sub(r"\2 <= \1 <= \3", _LIKE.sub(_like, text))
    guess = "".join(map(_code, _STRING.split(guess))).strip()
    if _parsed(guess) is None:
        guess = "".join(map(_named, _STRING.split(guess)))
    return _with_functions(guess)


def _like(match: re.Match[str]) -> str:
    operand, negated, before, text, after = match.groups()
    function = _LIKE_FUNCTIONS.get((before, after))
    if function is None:
        return f"{operand} {'!=' if negated else '=='} '{text}'"
    return f"{negated or ''}{function}({operand}, '{text}')"


def _code(part: str) -> str:
    """Return a part of an expression with the operators of Python, unless it is a string."""
    if _STRING.fullmatch(part):
        return part
    for pattern, replacement in _OPERATORS:
        part = re.sub(pattern, replacement, part)
    part = re.sub(r"(?<![.\w])\w+", lambda found: _WORDS.get(found[0].lower(), found[0]), part)
    return _NULL.sub(lambda found: f"is {'not ' if found[1] == '!=' else ''}None", part)


def _named(part: str) -> str:
    """Return a part of an expression with col('NAME') for names with spaces."""
    return part if _STRING.fullmatch(part) else _SPACED.sub(r"col('\g<0>')", part)


def _parsed(text: str) -> ast.expr | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _with_functions(text: str) -> str:
    tree = _parsed(text)
    if tree is None:
        return text
    try:
        before = ast.dump(tree)
        after = _Functions().visit(tree)
        return text if ast.dump(after) == before else ast.unparse(after)
    except RecursionError:
        return text


class _Functions(ast.NodeTransformer):
    """Replaces methods of Python, pandas and Polars by functions and operators, and f-strings by
    sums."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or node.keywords:
            return node
        value, name = _without_accessor(node.func.value), node.func.attr
        made = _METHODS.get((name, len(node.args)))
        return made(value, *node.args) if made else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Replace `'text' in column`."""
        self.generic_visit(node)
        match node:
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
        if not parts:
            return ast.Constant("")
        result = parts[0]
        for part in parts[1:]:
            result = ast.BinOp(result, ast.Add(), part)
        return result


def _without_accessor(value: ast.expr) -> ast.expr:
    is_accessor = isinstance(value, ast.Attribute) and value.attr in ("str", "list")
    return value.value if isinstance(value, ast.Attribute) and is_accessor else value


def _call(function: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(function), list(arguments), [])


def _compare(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> ast.expr:
    return ast.Compare(left, [operator], [right])


def _function(name: str) -> Callable[..., ast.expr]:
    return lambda *arguments: _call(name, *arguments)


_METHODS: dict[tuple[str, int], Callable[..., ast.expr]] = {
    **{(name, 0): _function(name) for name in ("len", "lower", "upper", "strip", "abs")},
    **{(name, 1): _function(name) for name in ("startswith", "endswith", "contains", "matches")},
    **{(name, 0): _function("lower") for name in ("casefold", "to_lowercase")},
    ("starts_with", 1): _function("startswith"),
    ("ends_with", 1): _function("endswith"),
    ("to_uppercase", 0): _function("upper"),
    **{
        (name, 0): lambda value: _compare(value, ast.Is(), ast.Constant(None))
        for name in ("isnull", "isna", "is_null")
    },
    **{
        (name, 0): lambda value: _compare(value, ast.IsNot(), ast.Constant(None))
        for name in ("notnull", "notna", "is_not_null")
    },
    **{
        (name, 1): lambda value, values: _compare(value, ast.In(), values)
        for name in ("isin", "is_in")
    },
    ("between", 2): lambda value, low, high: ast.Compare(
        low, [ast.LtE(), ast.LtE()], [value, high]
    ),
    ("get", 1): ast.Subscript,
}
"""What a method becomes, by its name and number of arguments."""
