"""Converts a filter to a condition with which Iceberg leaves out data files."""

from __future__ import annotations

import ast
from functools import reduce

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Or,
)
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from batchinference.spec.expression import parse_expression

_COMPARISONS: dict[type[ast.cmpop], type[LiteralPredicate]] = {
    ast.Eq: EqualTo,
    ast.Gt: GreaterThan,
    ast.GtE: GreaterThanOrEqual,
    ast.Lt: LessThan,
    ast.LtE: LessThanOrEqual,
}
_EXACT = {
    int: (IntegerType, LongType),
    str: (StringType, DateType, TimestampType, TimestamptzType),
}
"""The types of columns that Iceberg compares with a value as the filter does."""


def file_filter(text: str | None, schema: Schema) -> BooleanExpression:
    """Return a condition that holds for each row for which the filter holds, and for others."""
    return AlwaysTrue() if text is None else _converted(parse_expression(text), schema)


def _converted(tree: ast.expr, schema: Schema) -> BooleanExpression:
    match tree:
        case ast.BoolOp(op=operator, values=values):
            both = And if isinstance(operator, ast.And) else Or
            return reduce(both, (_converted(value, schema) for value in values))
        case ast.Compare(
            left=ast.Name(id=name),
            ops=[operator],
            comparators=[ast.Constant(value=value)],
        ) if type(operator) in _COMPARISONS:
            return _comparison(_COMPARISONS[type(operator)], name, value, schema)
    return AlwaysTrue()


def _comparison(
    kind: type[LiteralPredicate], name: str, value: object, schema: Schema
) -> BooleanExpression:
    column = next((each for each in schema.columns if each.name == name), None)
    if column is None or not isinstance(column.field_type, _EXACT.get(type(value), ())):
        return AlwaysTrue()
    try:
        condition = kind(name, value)
        bind(schema, condition, case_sensitive=True)
    except (TypeError, ValueError):  # a value that the column cannot have
        return AlwaysTrue()
    return condition
