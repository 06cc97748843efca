"""Finds values that Arrow can hold and Python cannot: invalid UTF-8, dates beyond the year 9999.

Files can hold such values, and Arrow passes them on. Each step or writer that converts one to a
Python object raises an exception. The time zone of a column is only metadata of its timestamps: in
a zone that Python does not know, or that moves one out of the years 1 to 9999, they are converted
in UTC.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds
from ray.data.extensions import get_arrow_extension_tensor_types

_DAY = 86_400
_FIRST_DAY, _LAST_DAY = -719_161, 2_932_895
"""The days from 0001-01-02 to 9999-12-30, relative to 1970. A time zone may add or subtract one."""
_DURATION_DAYS = 999_999_998
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_INT64 = 2**63 - 1
_TEXTS = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
_LISTS = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
_OTHERS = (kinds.is_union, kinds.is_run_end_encoded, kinds.is_list_view, kinds.is_large_list_view)
"""Types that are not inspected: their values are converted one by one."""


def unreadable_rows(table: pa.Table) -> dict[int, Exception]:
    """Return the error of each row with a value that Python cannot represent, by row index."""
    errors: dict[int, Exception] = {}
    for field, zoned in zip(table.schema, table.columns, strict=True):
        start, column = 0, in_known_zones(zoned)
        for chunk in column.chunks:
            for index in [] if _is_readable(chunk) else range(len(chunk)):
                try:
                    chunk[index].as_py()
                except Exception as error:  # noqa: BLE001 - whatever is raised, it is invalid
                    reason = f"{type(error).__name__}: {error}"
                    message = (
                        f"column '{field.name}': its value is invalid as {field.type} ({reason})"
                    )
                    errors.setdefault(start + index, ValueError(message))
            start += len(chunk)
    return errors


def with_known_zones(table: pa.Table) -> pa.Table:
    """Return a table with columns as `in_known_zones` returns them."""
    columns = [in_known_zones(column) for column in table.columns]
    return pa.Table.from_arrays(columns, table.column_names) if columns else table


def in_known_zones(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with its timestamps in UTC if Python cannot represent them in their zone."""
    kind = _in_utc(column.type)
    if kind == column.type or all(map(_is_readable, column.chunks)):
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # each value that is invalid is found
        return column


@lru_cache(maxsize=1024)
def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type with UTC as the zone of all timestamps in it."""
    if kinds.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if kinds.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _in_utc(kind.value_type), kind.ordered)
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if kinds.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), _in_utc(kind.item_type))
    for is_list, of in ((kinds.is_list, pa.list_), (kinds.is_large_list, pa.large_list)):
        if is_list(kind):
            return of(kind.value_field.with_type(_in_utc(kind.value_type)))
    if kinds.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)), kind.list_size)
    return kind


@lru_cache(maxsize=1024)
def _may_be_unreadable(kind: pa.DataType) -> bool:
    """Return whether values of this type can be unreadable. Numbers never are."""
    if isinstance(kind, get_arrow_extension_tensor_types()):
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return _may_be_unreadable(kind.storage_type)
    if kinds.is_dictionary(kind):
        return _may_be_unreadable(kind.value_type)
    if kinds.is_temporal(kind) or any(is_kind(kind) for is_kind in (*_TEXTS, *_OTHERS)):
        return True
    if kinds.is_struct(kind) and not _has_unique_names(kind):
        return True
    return any(_may_be_unreadable(kind.field(at).type) for at in range(kind.num_fields))


def _has_unique_names(kind: pa.StructType) -> bool:
    return len({field.name for field in kind}) == int(kind.num_fields)


def _is_readable(array: pa.Array) -> bool:
    """Return whether all values are readable. False means that some may not be."""
    kind = array.type
    if not _may_be_unreadable(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _is_readable(array.storage)
    if kinds.is_dictionary(kind):
        return _is_readable(array.dictionary)
    if any(is_text(kind) for is_text in _TEXTS):
        return _is_valid(array)
    if kinds.is_struct(kind):
        return _has_unique_names(kind) and all(map(_is_readable, array.flatten()))
    if kinds.is_map(kind):
        array = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    if any(is_list(array.type) for is_list in _LISTS):
        return _is_readable(array.flatten())
    return _is_within(array, _limits(kind))


def _is_valid(texts: pa.Array) -> bool:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_within(array: pa.Array, limits: tuple[int, int] | None) -> bool:
    if limits is None:
        return bool(len(array) == array.null_count)
    numbers = pa.int32() if array.type.bit_width == 32 else pa.int64()
    found = pc.min_max(array.view(numbers)).as_py()
    least, most = found["min"], found["max"]
    return bool(least is None or (limits[0] <= least and most <= limits[1]))


@lru_cache(maxsize=1024)
def _limits(kind: pa.DataType) -> tuple[int, int] | None:
    """Return a range of values that are readable; None if no value is."""
    if kinds.is_date32(kind):
        return _FIRST_DAY, _LAST_DAY
    if kinds.is_date64(kind):
        return _FIRST_DAY * _DAY * 1000, _LAST_DAY * _DAY * 1000
    if not isinstance(kind, pa.TimestampType | pa.DurationType | pa.Time32Type | pa.Time64Type):
        return None  # such as an interval
    a_day = _DAY * _PER_SECOND[kind.unit]
    if kinds.is_time(kind):
        return 0, a_day - 1
    days = (-_DURATION_DAYS, _DURATION_DAYS)
    if kinds.is_timestamp(kind):
        if kind.tz is not None and not _is_known_zone(kind):
            return None
        days = (_FIRST_DAY, _LAST_DAY)
    room = _INT64 - a_day  # pandas converts nanoseconds, within int64
    return max(days[0] * a_day, -room), min(days[1] * a_day, room)


def _is_known_zone(kind: pa.TimestampType) -> bool:
    try:
        pa.scalar(0, kind).as_py()
    except Exception:  # noqa: BLE001 - whatever is raised, each value raises it
        return False
    return True
