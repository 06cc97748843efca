"""The filter step: an expression over columns, computed by Arrow.

Values and operators are Python's but for null, which follows SQL: what is computed of null is null,
except `is None`, `and` and `or` where the other side decides, and `in` where the list names None.
A division by zero gives null as well.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from batchinference.pipeline.failures import JobFailure
from batchinference.pipeline.steps.base import Changed
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
    ast.And: operator.and_,
    ast.Or: operator.or_,
}
_NUMBERS = (
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    *(pa.types.is_boolean, pa.types.is_null),
)
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
        self._expression = expression
        self._tree = parse_expression(expression)
        self._columns = sorted(columns_of(self._tree))

    def __call__(self, batch: pa.Table) -> pa.Table | Changed:
        mask = self.mask(batch)
        stay = np.flatnonzero(mask.to_numpy())
        return batch if len(stay) == batch.num_rows else Changed(batch.filter(mask), stay)

    def mask(self, batch: pa.Table) -> pa.ChunkedArray:
        """Which rows stay. Raises JobFailure when the expression does not fit the columns, and
        ArrowInvalid for a row of which it cannot be computed, as a sum that overflows."""
        require(self._step, self._columns, batch)
        narrow = batch.select(self._columns)
        expression = self._fitting(narrow.schema)
        return pc.fill_null(_compute(expression, narrow), False)

    def _fitting(self, schema: pa.Schema) -> pc.Expression:
        step, text = f"step '{self._step}'", self._expression
        nothing = pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)
        try:
            expression = to_arrow(self._tree, schema)
            kind = _compute(expression, nothing).type
        except (ValueError, TypeError, NotImplementedError) as error:  # Arrow's own among them
            raise JobFailure(f"{step}: the filter cannot be computed: {text}: {error}") from None
        if not pa.types.is_boolean(kind):
            raise JobFailure(f"{step}: the filter gives {kind}, not true or false: {text}")
        return expression


def _compute(expression: pc.Expression, table: pa.Table) -> pa.ChunkedArray:
    return pads.dataset(table).to_table(columns={"result": expression}).column("result")


def _type_of(expression: pc.Expression, schema: pa.Schema) -> pa.DataType:
    return _compute(expression, schema.empty_table()).type


def to_arrow(node: ast.expr, schema: pa.Schema) -> pc.Expression:
    """A filter's tree as an Arrow expression over columns of this schema."""
    match node:
        case ast.Constant(value=value):
            return pc.scalar(value)
        case ast.Name(id=name):
            return _column(name, schema)
        case ast.Call():
            return _call(node, schema)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~to_arrow(operand, schema)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            # not negate, which makes of the unsigned 1 the largest number
            return pc.scalar(0) - to_arrow(operand, schema)
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(op, to_arrow(left, schema), to_arrow(right, schema), schema)
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
            found = _is_in(value, values, schema)
            return found if isinstance(op, ast.In) else ~found
    return _OPERATORS[type(op)](value, to_arrow(right, schema))


def _is_in(value: pc.Expression, values: list[Any], schema: pa.Schema) -> pc.Expression:
    """Null where the value is, as in any comparison, unless the list itself names None."""
    listed = pa.array(values)
    if pa.types.is_null(listed.type):  # an empty list, which no text would be compared with
        listed = listed.cast(_type_of(value, schema))
    found = value.isin(listed)
    if None in values:
        return found
    return pc.if_else(value.is_valid(), found, pc.scalar(pa.scalar(None, pa.bool_())))


def _arithmetic(
    op: ast.operator, left: pc.Expression, right: pc.Expression, schema: pa.Schema
) -> pc.Expression:
    if not isinstance(op, ast.Div | ast.Mod):
        return _OPERATORS[type(op)](left, right)
    kinds = [_type_of(side, schema) for side in (left, right)]
    for kind in kinds:
        if not any(is_number(kind) for is_number in _NUMBERS):
            raise TypeError(f"{kind} is no number")
    zero = pc.scalar(pa.scalar(None, kinds[1]))
    divisor = pc.if_else(right == pc.scalar(0), zero, right)
    if isinstance(op, ast.Mod) and all(map(pa.types.is_integer, kinds)):
        return _remainder(_remainder(left, divisor) + divisor, divisor)
    dividend, divisor = (side.cast(pa.float64(), safe=False) for side in (left, divisor))
    quotient = dividend / divisor
    return quotient if isinstance(op, ast.Div) else dividend - divisor * pc.floor(quotient)


def _remainder(dividend: pc.Expression, divisor: pc.Expression) -> pc.Expression:
    """With the sign of the dividend, as in C."""
    return dividend - divisor * pc.divide_checked(dividend, divisor)


def _column(name: str, schema: pa.Schema) -> pc.Expression:
    """A column, of wide numbers: Arrow would compute with narrow ones until they overflow."""
    kind, column = schema.field(name).type, pc.field(name)
    if pa.types.is_integer(kind) and kind.bit_width < 64:
        return column.cast(pa.int64())
    return column.cast(pa.float32()) if pa.types.is_float16(kind) else column


def _call(node: ast.Call, schema: pa.Schema) -> pc.Expression:
    if is_column(node):
        return _column(column_of(node), schema)
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    value = to_arrow(node.args[0], schema)
    if name == "len":
        return _length(value, schema).cast(pa.int64())
    constants = [arg.value for arg in node.args[1:] if isinstance(arg, ast.Constant)]
    return _FUNCTIONS[name](value, *constants)


def _length(value: pc.Expression, schema: pa.Schema) -> pc.Expression:
    """Characters of a text, bytes of a binary, elements of a list."""
    kind = _type_of(value, schema)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pc.list_value_length(value)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.binary_length(value)
    return pc.utf8_length(value)
