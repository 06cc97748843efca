"""Translates the filter of a job to a condition of Iceberg, which leaves out data files."""

from __future__ import annotations

import ast
from functools import reduce
from typing import Any

from pyiceberg import expressions as iceberg
from pyiceberg.expressions import BooleanExpression
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

_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Eq: iceberg.EqualTo,
    ast.Gt: iceberg.GreaterThan,
    ast.GtE: iceberg.GreaterThanOrEqual,
    ast.In: iceberg.In,
    ast.Lt: iceberg.LessThan,
    ast.LtE: iceberg.LessThanOrEqual,
}
_EXACT = {
    int: (IntegerType, LongType),
    str: (StringType, DateType, TimestampType, TimestamptzType),
}
"""By the type of a constant: the column types that Iceberg compares with it as the filter does."""


def iceberg_filter(text: str | None, schema: Schema) -> BooleanExpression:
    """Return a condition that holds for all rows for which the filter holds; it may hold for more.

    Parts of the filter that Iceberg cannot evaluate become "always true"."""
    return iceberg.AlwaysTrue() if text is None else _condition(parse_expression(text), schema)


def _condition(tree: ast.expr, schema: Schema) -> BooleanExpression:
    match tree:
        case ast.BoolOp(op=operator, values=values):
            both = iceberg.And if isinstance(operator, ast.And) else iceberg.Or
            return reduce(both, (_condition(value, schema) for value in values))
        case ast.Compare(left=ast.Name(id=name), ops=[operator], comparators=[right]):
            try:
                value = ast.literal_eval(right)
                kinds = {
                    type(each) for each in (value if isinstance(value, list | tuple) else [value])
                }
                column = schema.find_field(name).field_type
                if all(isinstance(column, _EXACT[kind]) for kind in kinds):
                    condition = _COMPARISONS[type(operator)](name, value)
                    bind(schema, condition, case_sensitive=True)
                    return condition  # type: ignore[no-any-return]
            except (KeyError, TypeError, ValueError):  # Iceberg has no such comparison
                pass
    return iceberg.AlwaysTrue()
