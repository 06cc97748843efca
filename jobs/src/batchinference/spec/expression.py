"""The language of filters: a small, safe part of Python's expressions over columns.

Only its grammar is here, so that a specification can be checked anywhere; the pipeline turns the
same tree into an Arrow expression.
"""

from __future__ import annotations

import ast
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

FUNCTIONS = {
    "col": 1,
    "len": 1,
    "lower": 1,
    "upper": 1,
    "abs": 1,
    "startswith": 2,
    "endswith": 2,
    "contains": 2,
    "matches": 2,
}
"""Function name to number of arguments."""

_LEAVES = (ast.Constant, ast.Name, ast.Load)
_OPERATORS = (
    *(ast.And, ast.Or, ast.Not, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot),
)
_BRANCHES = (ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.List, ast.Tuple)


def parse_expression(text: str) -> ast.expr:
    """The tree of a filter expression.

    Raises ValueError that names the part which the language does not have.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not an expression: {error.msg} at character {error.offset}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not an expression: {error or 'nested too deeply'}") from None
    _check(tree)
    return tree


def columns_of(tree: ast.expr) -> set[str]:
    """The columns that an expression reads."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    functions = {id(call.func) for call in calls}
    named = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and id(node) not in functions
    }
    return named | {column_of(call) for call in calls if is_column(call)}


def is_column(node: ast.Call) -> bool:
    """Whether a call is col('NAME'), which reaches columns whose names are no identifiers."""
    return isinstance(node.func, ast.Name) and node.func.id == "col"


def column_of(node: ast.Call) -> str:
    argument = node.args[0]
    return str(argument.value) if isinstance(argument, ast.Constant) else ""


def _check(tree: ast.expr) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            _check_call(node)
        elif isinstance(node, ast.Compare):
            _check_comparison(node)
        elif not isinstance(node, _LEAVES + _OPERATORS + _BRANCHES):
            raise ValueError(f"'{ast.unparse(node)}' is not part of the filter language")
    if not columns_of(tree):
        raise ValueError("it reads no column")


def _check_call(node: ast.Call) -> None:
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    if name not in FUNCTIONS:
        raise ValueError(f"unknown function '{name}'; there are {', '.join(FUNCTIONS)}")
    if node.keywords or len(node.args) != FUNCTIONS[name]:
        raise ValueError(f"{name}() takes {FUNCTIONS[name]} argument(s)")
    for argument in node.args if name == "col" else node.args[1:]:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise ValueError(f"the last argument of {name}() must be a string in quotes")


def _check_comparison(node: ast.Compare) -> None:
    for operator, right in zip(node.ops, node.comparators, strict=True):
        if isinstance(operator, ast.Is | ast.IsNot) and not _is_none(right):
            raise ValueError("'is' compares with None alone; use '=='")
        if isinstance(operator, ast.In | ast.NotIn) and not _is_list_of_constants(right):
            raise ValueError("'in' needs a list of constants on its right")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_list_of_constants(node: ast.expr) -> bool:
    return isinstance(node, ast.List | ast.Tuple) and all(
        isinstance(element, ast.Constant) for element in node.elts
    )


def _parses(text: str) -> str:
    try:
        parse_expression(text)
    except ValueError as error:
        raise PydanticCustomError("expression", "{reason}", {"reason": str(error)}) from None
    return text


Expression = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_parses)]
