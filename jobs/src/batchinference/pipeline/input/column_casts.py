"""Casts the columns of files that define their own types to the types that all files share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.column_types import cast_column, name_of
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.schema import map_types, shared_types, with_types
from batchinference.spec.column_types import ColumnType


class ColumnCasts:
    """Casts tables to the types in `shared`. `declared` are the types that the user has declared,
    and `zone` is the time zone of timestamps without one, or None."""

    def __init__(self, declared: Mapping[str, ColumnType], zone: str | None) -> None:
        self._declared, self._zone = declared, zone
        self.shared: dict[str, pa.DataType] = {}

    def share(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Find the types that hold the values of these files. Raises BadInput if there is no type
        for a column, or if its type cannot be cast to the declared one."""
        if self._declared or self._zone:
            schemas = {uri: self._cast_schema(schema, uri) for uri, schema in schemas.items()}
        self.shared = shared_types(schemas, "declare the type in read.options.types")

    def _cast_schema(self, schema: pa.Schema, uri: str) -> pa.Schema:
        try:
            return self._own(schema.empty_table()).schema
        except (ValueError, TypeError, NotImplementedError) as error:
            raise BadInput(f"read.options.types: {uri}: {error}") from None

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return a table with the shared types. Raises ValueError for a value that does not fit,
        and TypeError if the type of a column does not fit."""
        return with_types(self._own(table), self.shared)

    def _own(self, table: pa.Table) -> pa.Table:
        """Return a table with the declared types, and with time zones."""
        for index, field in enumerate(table.schema if self._declared or self._zone else ()):
            column = table.column(index)
            if self._zone and _zoned_type(field.type, self._zone) != field.type:
                column = column.chunks or [column.combine_chunks()]
                try:
                    column = pa.chunked_array([_zoned(chunk, self._zone) for chunk in column])
                except TypeError as error:
                    raise TypeError(f"column '{field.name}': {error}") from None
            if (kind := self._declared.get(field.name)) is not None:
                try:
                    column = cast_column(column, kind)
                except (ValueError, NotImplementedError) as error:
                    wrong = ValueError if isinstance(error, ValueError) else TypeError
                    problem = f"column '{field.name}' is not {name_of(kind)}, its declared type"
                    raise wrong(f"{problem}: {error}") from None
            if column.type != field.type:
                table = table.set_column(index, field.name, column)
        return table


def _zoned_type(kind: pa.DataType, zone: str) -> pa.DataType:
    """Return a type with a time zone for all timestamps without one, also nested ones."""

    def zoned(inner: pa.DataType) -> pa.DataType:
        naive = pa.types.is_timestamp(inner) and not inner.tz
        return pa.timestamp(inner.unit, zone) if naive else inner

    return map_types(kind, zoned)


def _zoned(array: pa.Array, zone: str) -> pa.Array:
    """Return an array with the type of `_zoned_type`. Raises ArrowInvalid for a time that does not
    exist or is ambiguous, because clocks were changed, and TypeError for timestamps in maps and
    lists of a fixed size."""
    kind = _zoned_type(array.type, zone)
    if kind == array.type:
        return array
    if pa.types.is_timestamp(kind):
        return pc.assume_timezone(array, zone)
    if pa.types.is_struct(kind):
        fields = [_zoned(array.field(index), zone) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    large = pa.types.is_large_list(kind)
    if not large and not pa.types.is_list(kind):
        raise TypeError(f"it is {array.type}. assumeTimezone cannot add a zone to these timestamps")
    lengths = pc.list_value_length(array).fill_null(0).to_numpy()
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int64() if large else pa.int32())
    make = pa.LargeListArray.from_arrays if large else pa.ListArray.from_arrays
    return make(offsets, _zoned(array.flatten(), zone), kind, mask=array.is_null())
