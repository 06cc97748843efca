"""The expression language of filters and computed columns: a safe subset of Python expressions.

This module only parses and checks expressions, so that a specification can be validated anywhere.
The pipeline converts the syntax tree into an Arrow expression.
"""

from __future__ import annotations

import ast
import difflib
import io
import keyword
import re
import tokenize
import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.expression_fixes import translated

FUNCTIONS = {
    "col": 1,
    "len": 1,
    "lower": 1,
    "upper": 1,
    "strip": 1,
    "abs": 1,
    "int": 1,
    "float": 1,
    "str": 1,
    "round": 1,
    "startswith": 2,
    "endswith": 2,
    "contains": 2,
    "matches": 2,
}
"""The number of arguments of each function."""

MAX_DEPTH = 100
"""Maximum depth of a syntax tree, which prevents a RecursionError."""
MAX_INTEGER = 2**63 - 1
MAX_DIGITS = 15
"""The maximum number of decimal places of `round`."""
MAX_ITEMS = 2**31 - 1
"""The maximum length of an Arrow list."""

MAX_TRANSLATED = 200
"""Maximum length of an invalid expression that a message translates."""

_FIX = re.compile(r"\. (?:Use|Compare|Write|Add) |; did you mean")
"""The fix begins after the problem in a message."""
_PLAIN_TEXT = re.compile(r"\w*[./:@-][\w./:@-]*")
"""What looks like a text without quotes, such as a path."""
_TEXT = re.compile(r"'[^']*'?|\"[^\"]*\"?")
_ASSIGNMENT = re.compile(r"(?<![=!<>])=(?![=<>])")
_COMPARED = re.compile(r"\b(\w+)\b(?=\s*(?:[=!<>)]|(?:is|in|not)\b|$))")
_KEY = re.compile(r"\.(\w+)|\[(\d+)\]|\['([^']+)'\]")
_UNCLOSED = re.compile(r"(?:'(?=[(\[{]' was never))?([(\[{]|unterminated string)")
_CLOSING = {"(": "')'", "[": "']'", "{": "'}'", "unterminated string": "quote"}
_KEYWORDS = ("and", "or", "not", "in", "is", "if", "else", "None", "True", "False")
"""Python keywords that the language supports."""
_LEAVES = (ast.Constant, ast.Name)
_BRANCHES = (
    *(ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.IfExp),
    *(ast.Attribute, ast.Subscript),
)
_OPERATORS = (
    *(ast.And, ast.Or, ast.Not, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot),
)


def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression, with negative numbers as constants.

    Raises ValueError if the expression is invalid or uses unsupported syntax.
    """
    try:
        return _checked_tree(text)
    except ValueError as error:
        problem, translation = _FIX.split(str(error))[0], _translation(text)
        if translation is None and not _PLAIN_TEXT.fullmatch(text):
            raise
        written = translation or f'"{text!r}" for a text'
        if translation == f"col({text!r})":
            written = f'{translation} for a column, or "{text!r}" for a text'
        raise ValueError(f"{problem}. Write {written}") from None


def _check_reads_column(text: str) -> None:
    if not columns_read_by(text):
        match parse_expression(text):
            case (
                ast.Compare(
                    left=ast.Constant(value=str(name)), ops=[ast.Eq() | ast.NotEq()]
                ) as comparison
            ) if name:
                comparison.left = syntax_tree(written(name))
                raise ValueError(f"it reads no column. Write {ast.unparse(comparison)}")
        raise ValueError("it reads no column. Use a column name, or col('NAME')")


def _checked_tree(text: str) -> ast.expr:
    tree: ast.expr = _FoldNegativeNumbers().visit(syntax_tree(text))
    _check(tree)
    return tree


def syntax_tree(text: str) -> ast.expr:
    """Return the syntax tree of an expression of Python that is not nested too deeply. Raises
    ValueError if it is none."""
    parsed = _parse(text.strip())
    if _depth(parsed) > MAX_DEPTH:
        raise ValueError("not an expression: nested too deeply")
    return parsed


def _translation(text: str) -> str | None:
    """Return an invalid expression as this language writes it; None if that is unknown."""
    if len(text) > MAX_TRANSLATED or (translation := translated(text)) == text:
        return None
    try:
        tree = _checked_tree(translation)
    except ValueError:
        return None
    is_chain = any(isinstance(node, ast.Compare) and len(node.ops) > 1 for node in ast.walk(tree))
    if is_chain and _ASSIGNMENT.search(_TEXT.sub("", text)):
        return None  # such as x = n > 1
    return translation if columns_of(tree) and not _has_bits(tree) else None


def _has_bits(tree: ast.expr) -> bool:
    """Return whether `and`, `or` and `not` are within arithmetic or have operands that are no
    conditions: then `&`, `|` and `~` may have been meant for bits."""
    for node in ast.walk(tree):
        inner: list[ast.expr] = []
        match node:
            case ast.BoolOp(values=values):
                inner = [value for value in values if _is_no_condition(value)]
            case ast.UnaryOp(op=ast.Not(), operand=ast.Constant() | ast.BinOp()):
                return True
            case ast.Compare() | ast.BinOp():
                parts = ast.iter_child_nodes(node)
                inner = [part for part in parts if isinstance(part, ast.BoolOp)]
        if inner:
            return True
    return False


def _is_no_condition(node: ast.expr) -> bool:
    if isinstance(node, ast.Compare):
        return all(isinstance(side, ast.Constant) for side in (node.left, *node.comparators))
    return isinstance(node, ast.Constant | ast.BinOp)


def _parse(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes such as \d
            parsed = ast.parse(text, mode="eval")
    except SyntaxError as error:
        place = _place(error, text)
        raise ValueError(
            f"not an expression: {error.msg} at {place}{_hint(text, error.msg)}"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not an expression: {error or 'nested too deeply'}") from None
    if _has_adjacent_texts(text):
        raise ValueError("not an expression: two texts stand side by side")
    return parsed.body


def _has_adjacent_texts(text: str) -> bool:
    """Return whether a valid expression has texts without an operator between them. Python joins
    them, so that the text 'it''s' of SQL would be its."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kinds = [token.type for token in tokens if token.type not in (tokenize.NL, tokenize.NEWLINE)]
    return any(pair == (tokenize.STRING, tokenize.STRING) for pair in pairwise(kinds))


def _hint(text: str, problem: str) -> str:
    """Return the fix for a bracket or quote that is missing, for `=` instead of `==`, or for a
    column whose name is a Python keyword."""
    if unclosed := _UNCLOSED.match(problem):
        if "string" in problem and '"' not in text and text.count("'") > 2:
            return ". Write a text that has ' in it with double quotes"
        return f". Add the {_CLOSING[unclosed[1]]} that is missing"
    code = _TEXT.sub("", text)
    for name in _COMPARED.findall(code):
        if keyword.iskeyword(name) and name not in _KEYWORDS:
            return f". Write col('{name}') for a column of that name"
    is_comparison = _ASSIGNMENT.search(code) and not re.search("[<>]", code)
    return ". Compare with '=='" if is_comparison else ""


def _place(error: SyntaxError, text: str) -> str:
    line, character = error.lineno or 0, error.offset or 0
    if line > 1:
        return f"line {line}"
    return f"character {character}" if 0 < character <= len(text) else "its end"


def _depth(tree: ast.AST) -> int:
    level: list[ast.AST] = [tree]
    depth = 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


class _FoldNegativeNumbers(ast.NodeTransformer):
    """Replaces the negation of a number by a negative constant."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        number = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if isinstance(number, bool) or not isinstance(number, int | float):
            return node
        return ast.Constant(-number) if isinstance(node.op, ast.USub) else node


def columns_of(tree: ast.expr) -> set[str]:
    """Return the columns that an expression reads."""
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    functions = {id(call.func) for call in calls}
    names = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in functions}
    return names | {column_of(call) for call in calls if is_column(call)}


@lru_cache(maxsize=1024)
def columns_read_by(text: str) -> frozenset[str]:
    """Return the columns that an expression reads. Raises ValueError like `parse_expression`.

    The result is cached because the operator validates and plans all jobs, and an expression of
    the maximum length takes 10 ms.
    """
    return frozenset(columns_of(parse_expression(text)))


def columns_with_items(tree: ast.expr) -> set[str]:
    """Return the columns of which an expression reads fields, items or the length."""
    whole: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                whole.append(value)
            case ast.Call(func=ast.Name(id="len"), args=[value]):
                whole.append(value)
    names = {node.id for node in whole if isinstance(node, ast.Name)}
    calls = [node for node in whole if isinstance(node, ast.Call)]
    return names | {column_of(call) for call in calls if is_column(call)}


def written(column: str) -> str:
    """Return a column as it is written in an expression."""
    plain = column.isidentifier() and not keyword.iskeyword(column)
    return column if plain else f"col({column!r})"


def names_compared_in(text: str) -> set[str]:
    """Return the names right of `==` and `!=` in a valid expression."""
    compared = [node for node in ast.walk(parse_expression(text)) if isinstance(node, ast.Compare)]
    pairs = [pair for node in compared for pair in zip(node.ops, node.comparators, strict=True)]
    equal = (right for op, right in pairs if isinstance(op, ast.Eq | ast.NotEq))
    return {right.id for right in equal if isinstance(right, ast.Name)}


def is_column(node: ast.Call) -> bool:
    """Return whether a call is col('NAME'), for columns whose names are not identifiers."""
    return isinstance(node.func, ast.Name) and node.func.id == "col"


def column_of(node: ast.Call) -> str:
    """Return NAME of a call col('NAME')."""
    argument = node.args[0]
    return str(argument.value) if isinstance(argument, ast.Constant) else ""


def _check(node: ast.expr) -> None:
    """Raise ValueError if a node or one of its parts is not supported."""
    known = isinstance(node, _LEAVES + _BRANCHES)
    if not known or not all(isinstance(operator, _OPERATORS) for operator in _operators(node)):
        raise _unsupported(node)
    match node:
        case ast.Constant():
            _check_constant(node)
        case ast.BoolOp():
            _check_conditions(node)
        case ast.Call():
            _check_call(node)
        case ast.Compare():
            _check_comparison(node)
        case ast.Subscript():
            _check_key(node)
    for part in _parts(node):
        _check(part)


def _operators(node: ast.expr) -> list[ast.AST]:
    match node:
        case ast.Compare():
            return list(node.ops)
        case ast.BoolOp() | ast.UnaryOp() | ast.BinOp():
            return [node.op]
    return []


def _unsupported(node: ast.expr) -> ValueError:
    fix = ". Use a python step" if isinstance(node, ast.BinOp) else ""
    return ValueError(f"'{ast.unparse(node)[:60]}' is not part of the expression language{fix}")


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the operands of an expression, without function names and the lists of `in`."""
    match node:
        case ast.Call():
            return node.args
        case ast.Compare():
            pairs = zip(node.ops, node.comparators, strict=True)
            right = [operand for op, operand in pairs if not isinstance(op, ast.In | ast.NotIn)]
            return [node.left, *right]
        case ast.Subscript():
            return [node.value]
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def _check_constant(node: ast.Constant) -> None:
    value = node.value
    if not isinstance(value, bool | int | float | str | bytes | None):
        raise _unsupported(node)
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ValueError(f"an integer is at most {MAX_INTEGER}")


def _check_call(node: ast.Call) -> None:
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    if name not in FUNCTIONS:
        near = difflib.get_close_matches(name, FUNCTIONS, 1, 0.8)
        fix = f". Use one of {', '.join(FUNCTIONS)}, or a python step"
        raise ValueError(
            f"unknown function '{name}'{f'; did you mean {near[0]!r}?' if near else fix}"
        )
    if name == "round" and len(node.args) > 1 and not node.keywords:
        _check_digits(node.args[1:])
        return
    if node.keywords or len(node.args) != FUNCTIONS[name]:
        raise ValueError(f"{name}() takes {FUNCTIONS[name]} argument(s)")
    for argument in node.args if name == "col" else node.args[1:]:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise ValueError(f"the last argument of {name}() must be a string in quotes")


def digits_of(node: ast.Call) -> int | None:
    """Return DIGITS of a call round(NUMBER, DIGITS); None for round(NUMBER)."""
    digits = node.args[1] if len(node.args) > 1 else None
    return digits.value if isinstance(digits, ast.Constant) else None  # type: ignore[return-value]


def _check_digits(nodes: list[ast.expr]) -> None:
    values = [node.value if isinstance(node, ast.Constant) else None for node in nodes]
    if len(values) > 1 or type(values[0]) is not int or not 0 <= values[0] <= MAX_DIGITS:
        raise ValueError(f"round() takes 1 argument(s), and may have 0 to {MAX_DIGITS} digits")


def key_of(node: ast.Attribute | ast.Subscript) -> str | int:
    """Return the field of a.field and a['field'], or the index of a[0]."""
    if isinstance(node, ast.Attribute):
        return node.attr
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return key if isinstance(key, str | int) else ""


def root_of(field: str) -> str:
    """Return the name of the column in `name.field` or `name[0]`."""
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def is_part_of_column(field: str) -> bool:
    """Return whether a text is a part of a column such as `name.field` or `name[0]`."""
    return re.fullmatch(rf"[^.\[\]]+(?:{_KEY.pattern})+", field) is not None


def keys_of(field: str) -> list[str | int]:
    """Return the fields and the indexes of items in `name.field[0]`."""
    found = _KEY.findall(field.removeprefix(root_of(field)))
    return [int(index) if index else name or quoted for name, index, quoted in found]


def _check_key(node: ast.Subscript) -> None:
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    if isinstance(key, str) or (type(key) is int and 0 <= key < MAX_ITEMS):
        return
    raise ValueError(
        f"'{ast.unparse(node)[:60]}' reads neither a field nor an item. Write a field as "
        "a['name'], and an item as a[0], counted from 0"
    )


def _check_comparison(node: ast.Compare) -> None:
    left = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        if isinstance(operator, ast.In | ast.NotIn):
            _check_list(right)
        elif isinstance(operator, ast.Is | ast.IsNot):
            if not _is_none(right):
                sign = "==" if isinstance(operator, ast.Is) else "!="
                raise ValueError(f"'is' can only compare with None. Use '{sign}'")
        elif _is_none(left) or _is_none(right):
            raise ValueError("a comparison with None is never true. Use 'is None' or 'is not None'")
        left = right


def _check_conditions(node: ast.BoolOp) -> None:
    for value in node.values:
        if isinstance(value, ast.Constant) and not isinstance(value.value, bool | None):
            raise ValueError(
                f"{value.value!r} is no condition, so it cannot be used with and or or"
            )


def _check_list(node: ast.expr) -> None:
    elements = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    for element in elements:
        if element is node or not isinstance(element, ast.Constant):
            raise ValueError(
                "'in' needs a list of constants on its right. Write a list such as ['a', 'b']"
            )
        _check_constant(element)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def check_text(text: str, parse: Callable[[str], object]) -> str:
    """Return a text that `parse` accepts. Raises PydanticCustomError with its ValueError."""
    try:
        parse(text)
    except ValueError as error:
        raise PydanticCustomError("expression", "{reason}", {"reason": str(error)}) from None
    return text


_Text = Annotated[str, Field(min_length=1, max_length=2048)]
Expression = Annotated[_Text, AfterValidator(partial(check_text, parse=columns_read_by))]
Condition = Annotated[_Text, AfterValidator(partial(check_text, parse=_check_reads_column))]
"""An expression that reads a column."""
