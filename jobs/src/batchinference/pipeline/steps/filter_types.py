"""The operands of a filter expression, and the types in which Arrow computes with two operands.

The casts of Arrow are not sufficient: it does not compare a text with a date, casts an integer to a
decimal of 19 digits, and refuses a large integer together with a float or a signed integer.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_UNSIGNED = pa.decimal128(20, 0)
"""Holds every 64-bit integer, signed or unsigned."""
MAX_DIGITS = 76
"""The number of digits of Arrow's widest decimal."""


class NoSuchValue(ValueError):
    """A text is not a value of the type that it is compared with."""


@dataclass(frozen=True)
class Operand:
    """A part of an expression, and its type. If it is null in every row, its type is null."""

    expression: pc.Expression
    kind: pa.DataType
    literal: Any = None
    """The value of a constant; None if the operand is not a constant."""

    @property
    def is_null(self) -> bool:
        return bool(pa.types.is_null(self.kind))

    @property
    def whole(self) -> bool:
        return bool(pa.types.is_integer(self.kind))

    def cast(self, kind: pa.DataType) -> Operand:
        """Return the operand cast to another type, with the nearest value if the cast is not
        exact."""
        return Operand(self.expression.cast(kind, safe=False), kind)

    def as_condition(self) -> Operand:
        """Return the operand for use as a condition: a null operand gets the boolean type."""
        return constant(pa.scalar(None, pa.bool_())) if self.is_null else self


def constant(value: Any) -> Operand:
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    return Operand(pc.scalar(scalar), scalar.type, value)


NULL = constant(None)


def comparable(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Return both operands in types that Arrow compares without loss. Raises NoSuchValue."""
    left, right = alike(left, right)
    return _beside(left, right), _beside(right, left)


def computable(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Return both operands in types whose sum, difference and product are the same as in Python."""
    if left.whole and right.whole and pa.uint64() in (left.kind, right.kind):
        return left.cast(_UNSIGNED), right.cast(_UNSIGNED)
    return _number_beside(left, right), _number_beside(right, left)


def alike(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Return both operands, with a non-negative integer constant as uint64 if the other operand is
    uint64."""
    return _unsigned(left, right), _unsigned(right, left)


def _unsigned(operand: Operand, other: Operand) -> Operand:
    value = operand.literal
    if other.kind != pa.uint64() or not operand.whole or value is None or value < 0:
        return operand
    return Operand(pc.scalar(pa.scalar(value, pa.uint64())), pa.uint64(), value)


def wide(operand: Operand) -> Operand:
    """Return a decimal operand in a type with room for the digits of a result."""
    kind = operand.kind
    if not pa.types.is_decimal(kind):
        return operand
    return operand.cast(pa.decimal256(kind.precision, kind.scale))


def listed(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return the constants of an `in` list that a value of this type may equal. Raises
    NoSuchValue."""
    if pa.types.is_null(pa.array(values).type):  # Arrow does not compare text with the null type
        return pa.array(values, kind)
    if _is_moment(kind):
        return pa.array([moment(v, kind) if isinstance(v, str) else v for v in values], kind)
    if pa.types.is_decimal(kind) or kind == pa.uint64():
        return pa.array([fitting for v in values for fitting in _fitting(v, kind)], kind)
    return pa.array(values)


def moment(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return the date or time of a text in ISO 8601. If the type has a time zone and the text has
    none, the text is a time in that zone. Raises NoSuchValue if the text is invalid."""
    try:
        if pa.types.is_time(kind):
            return pa.scalar(dt.time.fromisoformat(text), kind)
        if pa.types.is_timestamp(kind) and kind.tz:
            return _in_zone(text, kind)
        return pa.scalar(text).cast(kind)
    except ValueError:  # including Arrow's errors
        raise NoSuchValue(f"'{text}' is no {kind}") from None


def _in_zone(text: str, kind: pa.TimestampType) -> pa.Scalar:
    try:
        return pa.scalar(text).cast(kind)
    except pa.ArrowInvalid:
        return pc.assume_timezone(pa.scalar(text).cast(pa.timestamp(kind.unit)), kind.tz)


def _is_moment(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_time)
    return any(is_kind(kind) for is_kind in kinds)


def _beside(operand: Operand, other: Operand) -> Operand:
    if isinstance(operand.literal, str) and _is_moment(other.kind):
        return constant(moment(operand.literal, other.kind))
    if operand.whole and other.whole and operand.kind != other.kind:  # one is signed, one unsigned
        return operand.cast(_UNSIGNED)
    return _number_beside(operand, other)


def _number_beside(operand: Operand, other: Operand) -> Operand:
    if operand.whole and pa.types.is_floating(other.kind):
        return operand.cast(pa.float64())
    if pa.types.is_decimal(other.kind) and (exact := _decimal(operand.literal)) is not None:
        return constant(pa.scalar(exact))
    return operand


def _decimal(value: Any) -> Decimal | None:
    """Return a number as an exact decimal; None if it is not a number or has too many digits."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    exact = Decimal(repr(value))
    most = MAX_DIGITS // 2
    return exact if value == 0 or abs(exact.adjusted()) < most else None


def _fitting(value: Any, kind: pa.DataType) -> list[Any]:
    """Return the value as this type, or an empty list if no value of the type equals it."""
    exact = _decimal(value)
    if exact is None:
        return [value]
    try:
        number = int(exact) if exact == int(exact) else exact
        return [pa.scalar(number if pa.types.is_integer(kind) else exact, kind)]
    except (pa.ArrowInvalid, OverflowError):
        return []
