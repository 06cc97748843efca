"""The filter step: an expression over columns, computed by Arrow."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from batchinference.pipeline.failures import JobFailure
from batchinference.pipeline.steps.columns import require
from batchinference.spec.expression import column_of, columns_of, is_column, parse_expression

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left.cast(pa.float64()) / right,
    ast.Mod: lambda left, right: left - right * pc.floor(left.cast(pa.float64()) / right),
    ast.And: operator.and_,
    ast.Or: operator.or_,
}
_FUNCTIONS: dict[str, Callable[..., pc.Expression]] = {
    "lower": pc.utf8_lower,
    "upper": pc.utf8_upper,
    "abs": pc.abs,
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
    "contains": pc.match_substring,
    "matches": pc.match_substring_regex,
}


class Filter:
    """Keeps the rows for which an expression is true; null counts as false."""

    def __init__(self, step: str, expression: str) -> None:
        self._step = step
        self._tree = parse_expression(expression)
        self._columns = sorted(columns_of(self._tree))

    def mask(self, batch: pa.Table) -> pa.ChunkedArray:
        require(self._step, self._columns, batch)
        expression = to_arrow(self._tree, batch.schema)
        narrow = pads.dataset(batch.select(self._columns))
        try:
            result = narrow.to_table(columns={"keep": expression}).column("keep")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise JobFailure(
                f"step '{self._step}': the filter cannot be computed: {error}"
            ) from None
        if not pa.types.is_boolean(result.type):
            raise JobFailure(
                f"step '{self._step}': the filter gives {result.type}, not true or false"
            )
        return pc.fill_null(result, False)


def to_arrow(node: ast.expr, schema: pa.Schema) -> pc.Expression:
    """A filter's tree as an Arrow expression over columns of this schema."""
    match node:
        case ast.Constant(value=value):
            return pc.scalar(value)
        case ast.Name(id=name):
            return pc.field(name)
        case ast.Call():
            return _call(node, schema)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~to_arrow(operand, schema)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return pc.negate(to_arrow(operand, schema))
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](to_arrow(left, schema), to_arrow(right, schema))
        case ast.BoolOp(op=op, values=values):
            return _fold(_OPERATORS[type(op)], [to_arrow(value, schema) for value in values])
        case ast.Compare(left=left, ops=ops, comparators=rights):
            lefts = [left, *rights[:-1]]
            pairs = zip(lefts, ops, rights, strict=True)
            return _fold(operator.and_, [_compare(*pair, schema) for pair in pairs])
    raise ValueError(f"'{ast.unparse(node)}' is not part of the filter language")


def _fold(combine: Callable[[Any, Any], Any], parts: list[pc.Expression]) -> pc.Expression:
    result, *others = parts
    for part in others:
        result = combine(result, part)
    return result


def _compare(left: ast.expr, op: ast.cmpop, right: ast.expr, schema: pa.Schema) -> pc.Expression:
    value = to_arrow(left, schema)
    match op:
        case ast.Is():
            return value.is_null()
        case ast.IsNot():
            return ~value.is_null()
        case ast.In() | ast.NotIn():
            elements = right.elts if isinstance(right, ast.List | ast.Tuple) else []
            values = [e.value for e in elements if isinstance(e, ast.Constant)]
            return value.isin(values) if isinstance(op, ast.In) else ~value.isin(values)
    return _OPERATORS[type(op)](value, to_arrow(right, schema))


def _call(node: ast.Call, schema: pa.Schema) -> pc.Expression:
    if is_column(node):
        return pc.field(column_of(node))
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    value = to_arrow(node.args[0], schema)
    if name == "len":
        return _length(node.args[0], value, schema)
    constants = [arg.value for arg in node.args[1:] if isinstance(arg, ast.Constant)]
    return _FUNCTIONS[name](value, *constants)


def _length(argument: ast.expr, value: pc.Expression, schema: pa.Schema) -> pc.Expression:
    """Characters of a text, bytes of a binary, elements of a list."""
    if isinstance(argument, ast.Name) and argument.id in schema.names:
        kind = schema.field(argument.id).type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return pc.list_value_length(value)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return pc.binary_length(value)
    return pc.utf8_length(value)
