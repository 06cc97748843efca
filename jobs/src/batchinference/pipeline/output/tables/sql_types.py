"""Checks whether the columns of a database table can hold Arrow values without changing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pyarrow import types as kinds
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import postgresql

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.tables import name_error
from batchinference.pipeline.type_widening import (
    exact_cast,
    is_bytes,
    is_list,
    is_number,
    is_text,
    plain_type,
)

SqlTypes = Mapping[str, Any]
"""The SQLAlchemy types of the columns of a table, by column."""
POSTGRES_NAME = 63
"""The maximum number of bytes of a name in PostgreSQL."""
_FIX = "Change the column of the table, or convert the values in a step"


def check_values(table: pa.Table, types: SqlTypes, dialect: str, *, new: bool) -> None:
    """Raise BadOutput if a column of the database would change a value. A column is not checked if
    its SQL type is missing or unknown. `new` is whether the job will create the table."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        stored = types.get(name)
        if stored is None or kinds.is_null(column.type):
            continue
        try:
            _check_column(column.cast(plain_type(column.type)), stored, dialect)
        except pa.ArrowException as error:
            where, fix = f"{stored!r} in the table, and {column.type} in the rows", _FIX
            if new:
                where, fix = f"{column.type}, which the database lacks", "Convert it in a step"
            raise BadOutput(f"write: column '{name}' is {where} ({error}). {fix}") from None


def check_new_names(names: Sequence[str], dialect: str) -> None:
    """Raise BadOutput for the name of a column that a new table cannot have: PostgreSQL would cut a
    name that is too long."""
    for name in names:
        size = len(name.encode()) if dialect == "postgresql" else 0
        if not name or size > POSTGRES_NAME:
            problem = f"it has {size} bytes, at most {POSTGRES_NAME}" if name else "it is empty"
            raise name_error("the table", name, problem)


def check_keys(rows: pa.Schema, types: SqlTypes, key: Sequence[str], dialect: str) -> None:
    """Raise BadOutput if the database cannot compare values of a key column exactly."""
    for field in (field for field in rows if field.name in key):
        kind, stored = plain_type(field.type), types.get(field.name)
        if dialect == "sqlite" and getattr(kind, "tz", None):
            raise BadOutput(
                f"write.key: column '{field.name}' is {kind}, and SQLite has no time zones. Make "
                "it text in a step, or name other columns"
            )
        is_known = stored is not None and not kinds.is_null(kind)
        if is_known and is_text(kind) != isinstance(stored, sa.String):
            raise BadOutput(
                f"write.key: column '{field.name}' is {stored!r} in the table, and {kind} in the "
                f"rows, which do not compare exactly. {_FIX}"
            )


def check_required(names: Sequence[str], existing: sa.Table, dialect: str) -> None:
    """Raise BadOutput if the table requires a value in a column that the job does not write."""
    generated = None if dialect == "postgresql" else existing.autoincrement_column
    for column in existing.columns:
        defaults = (column.server_default, column.identity, column.computed)
        has_default = defaults != (None, None, None) or column is generated
        required = not column.nullable and not has_default
        if required and column.name not in names:
            raise BadOutput(
                f"write.columns: column '{column.name}' of the table '{existing.fullname}' is NOT "
                "NULL and has no default, and the job does not write it. Add it in a step, or give "
                "it a default"
            )


def check_generated(rows: pa.Table, existing: sa.Table, dialect: str) -> None:
    """Raise BadOutput if the database would replace a null by a generated number. MySQL also
    replaces zeros."""
    column = None if dialect == "postgresql" else existing.autoincrement_column
    if column is None or column.name not in rows.column_names:
        return
    values = rows.column(column.name)
    numbers = values.cast(pa.float64(), safe=False)  # also of booleans, which Arrow cannot compare
    has_zero = dialect in ("mysql", "mariadb") and pc.any(pc.equal(numbers, 0)).as_py()
    if values.null_count or has_zero:
        raise BadOutput(
            f"write.columns: the table '{existing.fullname}' generates a number for a row without "
            f"'{column.name}', and a row has {'0' if has_zero else 'null'} there. Leave out the "
            "column, or give each row a number in a step"
        )


def _check_column(column: pa.ChunkedArray, stored: Any, dialect: str) -> None:
    """Raise ArrowException if a column of type `stored` would change a value."""
    kind = column.type
    stored = stored.data_type if isinstance(stored, postgresql.DOMAIN) else stored
    if dialect == "sqlite":
        _check_driver(kind, stored)
    if isinstance(stored, sa.ARRAY):
        _check_elements(column, stored, dialect)
    elif isinstance(stored, sa.String):
        _check_texts(column, stored, dialect)
    elif isinstance(stored, postgresql.BIT):
        _require(is_text(kind), "it has bits only")
    elif isinstance(stored, sa.JSON):
        _require(kinds.is_nested(kind), "it stores lists and structs")
    elif (wanted := _arrow_type(kind, stored, dialect)) is not None:
        _require(not is_text(kind), "it has no texts")
        _check_kind(kind, wanted, dialect)
        exact_cast(column, wanted)
    if dialect == "sqlite" and isinstance(stored, sa.Numeric) and is_number(kind):
        exact_cast(column, pa.float64())  # SQLAlchemy stores numbers as floats in such a column


def _check_elements(column: pa.ChunkedArray, stored: sa.ARRAY[Any], dialect: str) -> None:
    """Raise ArrowException if an array column would change an element of a list."""
    kind, elements = column.type, column.chunks
    _require(is_list(kind), "it has lists only")
    while is_list(kind):  # PostgreSQL has one type for all dimensions
        kind, elements = kind.value_type, [chunk.flatten() for chunk in elements]
    if not kinds.is_null(kind):  # else all lists are empty, or have only nulls
        _check_column(pa.chunked_array(elements, kind), stored.item_type, dialect)


def _check_kind(kind: pa.DataType, wanted: pa.DataType, dialect: str) -> None:
    """Raise ArrowException if values of type `kind` would become another kind of values."""
    if kinds.is_floating(wanted) and kinds.is_integer(kind):
        _require(2 * kind.bit_width <= wanted.bit_width, "it rounds large integers")
    if kinds.is_integer(wanted):
        _require(kinds.is_integer(kind) or kinds.is_boolean(kind), "it has integers only")
    if kinds.is_date(wanted):
        _require(kinds.is_date(kind), "it has dates only")
    if kinds.is_boolean(wanted) and dialect != "sqlite":  # SQLite has no booleans
        _require(kinds.is_boolean(kind), "it has booleans only")


def _check_driver(kind: pa.DataType, stored: Any) -> None:
    """Raise ArrowException for values that the driver of SQLite refuses at the commit."""
    is_untyped = isinstance(stored, sqltypes.NullType)
    if is_untyped or isinstance(stored, sa.String):
        is_other = kinds.is_decimal(kind) or kinds.is_time(kind)
        is_other = is_other or (is_untyped and kinds.is_nested(kind))
        _require(not is_other, "SQLite stores such values only in columns of their type")


def _check_texts(column: pa.ChunkedArray, stored: sa.String, dialect: str) -> None:
    is_other = kinds.is_nested(column.type) or kinds.is_duration(column.type)
    if dialect != "sqlite":  # SQLite stores bytes as bytes, also in a column of texts
        is_other = is_other or is_bytes(column.type)
    _require(not is_other, "it has texts only")
    if dialect == "sqlite":
        _require(not kinds.is_floating(column.type), "it keeps 15 digits of such a number")
    length = None if dialect == "sqlite" else stored.length  # SQLite ignores the length
    if isinstance(stored, sa.Enum):
        values = set(column.cast(pa.string()).unique().drop_null().to_pylist())
        unknown = sorted(values - {*stored.enums})
        _require(not unknown, f"it does not have the value {unknown[:1]}")
    elif length is not None and not kinds.is_temporal(column.type):  # databases shorten times
        lengths = pc.min_max(pc.utf8_length(column.cast(pa.large_string()))).as_py()
        _require((lengths["max"] or 0) <= length, f"a text has {lengths['max']} characters")
        if isinstance(stored, sa.CHAR):
            _require((lengths["min"] or length) == length, "it appends spaces to shorter texts")


def _arrow_type(kind: pa.DataType, stored: Any, dialect: str) -> pa.DataType | None:
    """Return the Arrow type of the values that a column of the SQL type `stored` can hold; None if
    it is unknown. `kind` is the Arrow type of the values to store."""
    if isinstance(stored, sa.Integer):
        small = isinstance(stored, sa.SmallInteger) and pa.int16()
        large = (dialect == "sqlite" or isinstance(stored, sa.BigInteger)) and pa.int64()
        return large or small or pa.int32()
    if isinstance(stored, sa.Float):
        return pa.float32() if isinstance(stored, sa.REAL) and dialect != "sqlite" else pa.float64()
    if isinstance(stored, sa.Numeric | postgresql.MONEY):
        number = stored if isinstance(stored, sa.Numeric) else sa.Numeric(19, 2)
        return _decimal_type(kind, number, dialect)
    if isinstance(stored, sa.DateTime):
        fraction = getattr(stored, "precision", getattr(stored, "fsp", 6))
        exact = fraction in (None, 6) or dialect == "sqlite"
        unit = "us" if exact else "ms" if fraction > 2 else "s"
        zoned = stored.timezone if dialect == "postgresql" else getattr(kind, "tz", None)
        return pa.timestamp(unit, "UTC" if zoned else None)
    known = {sa.Boolean: pa.bool_(), sa.Date: pa.date32(), sa.Time: pa.time64("us")}
    known |= {sa.LargeBinary: pa.binary(), postgresql.INTERVAL: pa.duration("us")}
    return next((arrow for one, arrow in known.items() if isinstance(stored, one)), None)


def _decimal_type(kind: pa.DataType, stored: Any, dialect: str) -> pa.DataType | None:
    _require(not is_text(kind), "it has no texts")
    if stored.precision is not None and stored.precision <= pa.decimal128(38).precision:
        return pa.decimal128(stored.precision, stored.scale or 0)
    if dialect == "sqlite":
        return None if kinds.is_integer(kind) else pa.float64()
    _require(not kinds.is_floating(kind), "it keeps 15 digits of such a number")
    return None


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise pa.ArrowInvalid(problem)
