"""Reads Parquet files, and finds column types that hold the values of all files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchinference.pipeline.arrow import empty_table
from batchinference.pipeline.column_names import RENAME, check_known, check_names
from batchinference.pipeline.declared_types import cast_column, name_of
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.parquet_file import OpenParquet
from batchinference.pipeline.input.readers import (
    CHUNK_ROWS,
    NOT_NEEDED,
    BadRow,
    Chunk,
    DivisibleReader,
    FileStats,
    StatsReader,
    check_end,
    converted,
    describe_lacking,
    error_of_file,
    gaps_within,
    plain,
    size_of,
    skip_rows,
    take_rows,
)
from batchinference.pipeline.input.signatures import is_parquet, no_parquet
from batchinference.pipeline.row_batch import RowRange
from batchinference.pipeline.storage.arrow_files import (
    check_footer,
    parquet_footer,
    parquet_metadata,
)
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.type_widening import map_types, shared_types, with_types
from batchinference.spec.column_types import ColumnType, parse_types

if TYPE_CHECKING:
    from batchinference.spec.read import ParquetOptions

TAIL_BYTES = 1 << 13
"""The number of bytes at the end of a file that are read first. Most footers have fewer bytes."""


class ColumnCasts:
    """Casts tables to the common types of all files (`shared`). `declared` has the types that the
    user has declared. If `zone` is not None, timestamps without a time zone get this zone."""

    def __init__(self, declared: Mapping[str, ColumnType], zone: str | None) -> None:
        self._declared, self._zone = declared, zone
        self.shared: dict[str, pa.DataType] = {}

    def find_shared_types(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Set `shared` to types that hold the values of all these files. Raises BadInput if a
        column has no such type, or cannot be cast to its declared type."""
        if self._declared or self._zone:
            schemas = {uri: self._cast_schema(schema, uri) for uri, schema in schemas.items()}
        self.shared = shared_types(schemas, "declare the type in read.options.types")

    def _cast_schema(self, schema: pa.Schema, uri: str) -> pa.Schema:
        try:
            return self._with_declared(empty_table(schema)).schema
        except (ValueError, TypeError, NotImplementedError) as error:
            raise BadInput(f"read.options.types: {uri}: {error}") from None

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return a table cast to the shared types. Raises ValueError if a value does not fit the
        type, and TypeError if a type cannot be cast."""
        return with_types(self._with_declared(table), self.shared)

    def _with_declared(self, table: pa.Table) -> pa.Table:
        """Return a table with the declared types, and with time zones added."""
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
    """Return a type in which all timestamps without a time zone, even nested ones, have `zone`."""

    def zoned(inner: pa.DataType) -> pa.DataType:
        naive = pa.types.is_timestamp(inner) and not inner.tz
        return pa.timestamp(inner.unit, zone) if naive else inner

    return map_types(kind, zoned)


def _zoned(array: pa.Array, zone: str) -> pa.Array:
    """Return an array cast to `_zoned_type`. Raises TypeError for timestamps in maps and fixed-size
    lists, and ArrowInvalid for an ambiguous or missing time (daylight saving)."""
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


class ParquetReader(StatsReader, DivisibleReader):
    sampled_files = 64
    recognizes = staticmethod(is_parquet)

    def __init__(self, options: ParquetOptions) -> None:
        self._options = plain(options)
        self._columns: list[str] | None = None
        self._casts = ColumnCasts(parse_types(options.types), options.assume_timezone)

    @staticmethod
    def other_format(head: bytes) -> str | None:
        return None if not head or head.startswith((b"PAR1", b"PARE")) else no_parquet(head)

    def use_schemas(self, schemas: Mapping[str, pa.Schema]) -> None:
        wanted, declared = self._options.columns, self._options.types or {}
        names = list(dict.fromkeys(name for schema in schemas.values() for name in schema.names))
        for name in wanted or [] if schemas else ():
            check_known("columns", name, names)
        for name in declared if schemas else ():
            check_known(f"types.{name}", name, names)
        self._columns = wanted or next((schema.names for schema in schemas.values()), None)
        selected = {
            uri: pa.schema([field for field in schema if field.name in (wanted or schema.names)])
            for uri, schema in schemas.items()
        }
        for uri, schema in selected.items():
            check_names(schema.names, uri, RENAME)
        self.lacking = describe_lacking({uri: schema.names for uri, schema in selected.items()})
        self._casts.find_shared_types(selected)

    def read_part(
        self, file: Location, start: int, stop: int | None, gaps: Sequence[RowRange] = ()
    ) -> Iterator[Chunk]:
        with file.filesystem.open_input_file(file.path) as source:
            try:
                opened = self._opened(source)
            except Exception as error:  # noqa: BLE001 - see error_of_file
                yield from _failed(error, 1 if stop is None else stop - start)
                return
            check_end(file.uri, opened.footer.num_rows, start, None)
            if not opened.footer.num_rows:
                with suppress(TypeError, ValueError):  # types of an empty file do not matter
                    yield self._casts(opened.empty())
            for group, (first, after) in enumerate(pairwise(self._edges(opened.footer))):
                begin, end = max(start, first), after if stop is None else min(stop, after)
                if begin < end and gaps and not gaps_within(gaps, begin, end):
                    yield BadRow(NOT_NEEDED, end - begin)
                elif begin < end:
                    chunks = self._group(opened, group)
                    yield from take_rows(end - begin, skip_rows(begin - first, chunks, file.uri))

    def _opened(self, source: pa.NativeFile) -> OpenParquet:
        return OpenParquet(source, read_footer(source), self._options)

    def _group(self, opened: OpenParquet, group: int) -> Iterator[Chunk]:
        """Yield the rows of a row group. If the row group is damaged, or its types cannot be cast
        to the shared types, its remaining rows become failed rows."""
        rows = opened.footer.row_group(group).num_rows
        try:
            for table in opened.tables(group):
                for chunk in converted(table, lambda part: self._casts(opened.exact(part))):
                    rows -= size_of(chunk)
                    yield chunk
        except Exception as error:  # noqa: BLE001 - see error_of_file
            yield from _failed(error, rows)

    def _edges(self, footer: pq.FileMetaData) -> list[int]:
        """Return the first row of each row group, followed by the total number of rows."""
        sizes = (footer.row_group(group).num_rows for group in range(footer.num_row_groups))
        return list(accumulate(sizes, initial=0))

    def stats(self, file: Location, size: int) -> FileStats:
        footer = parquet_footer(file, size)
        check_footer(footer)
        schema = OpenParquet(pa.BufferReader(b""), footer, self._options).schema
        edges = self._edges(footer)
        return FileStats(edges[-1], edges[:-1] or [0], schema)

    def columns(self) -> list[str] | None:
        return self._columns

    def types(self) -> dict[str, pa.DataType]:
        return self._casts.shared


def _failed(error: Exception, rows: int) -> Iterator[BadRow]:
    cause = error_of_file(error)
    for start in range(0, rows, CHUNK_ROWS):
        yield BadRow(cause, min(CHUNK_ROWS, rows - start))


def read_footer(source: pa.NativeFile) -> pq.FileMetaData:
    """Return the footer of a file. Reads TAIL_BYTES first: Arrow would read 64 KiB, perhaps more
    than the wanted rows have. Raises ArrowInvalid if the file is not a Parquet file."""
    size = source.size()
    end = source.read_at(min(TAIL_BYTES, size), max(0, size - TAIL_BYTES))
    length = int.from_bytes(end[-8:-4], "little") + 8
    if len(end) < length <= size:
        end = source.read_at(length, size - length)
    footer = parquet_metadata(pa.BufferReader(end[-length:] if length <= len(end) else end))
    check_footer(footer)
    return footer
