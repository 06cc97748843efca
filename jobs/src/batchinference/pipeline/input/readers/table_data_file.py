"""Reads the Parquet files of tables with versions, and leaves out the deleted rows."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchinference.pipeline.column_names import check_known
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.expression import ColumnExpression
from batchinference.pipeline.input.file_pruning import FileBounds, bounds_of_group, matching
from batchinference.pipeline.input.parquet_file import OpenParquet
from batchinference.pipeline.input.readers import (
    CHUNK_ROWS,
    FILTERED,
    KEPT,
    BadRow,
    Chunk,
    FileStats,
    size_of,
)
from batchinference.pipeline.input.readers.parquet import ParquetReader
from batchinference.pipeline.row_batch import RowRange
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.type_widening import exact_cast

if TYPE_CHECKING:
    from batchinference.pipeline.input.table_version import TableVersion

NO_POSITIONS = np.empty(0, dtype=np.int64)


def positions_in(deleted: bytes | None) -> np.ndarray:
    """Return the sorted positions (int64) in `deleted`; no positions if it is None. `deleted` is a
    portable 64-bit Roaring bitmap, as in Delta and Iceberg tables."""
    if deleted is None:
        return NO_POSITIONS
    from pyroaring import BitMap64

    return np.array(BitMap64.deserialize(deleted), dtype=np.int64)


@dataclass(frozen=True)
class TypedRows:
    """Converts rows of a data file to the columns `names` of a table. With a filter, adds the
    column KEPT: whether the filter is true for a row.

    `shared` has the types of these columns, and of the columns that the filter reads. A value in
    `constants` is used even if the file has the column. A column that neither has is null."""

    shared: Mapping[str, pa.DataType]
    names: Sequence[str]
    filter: ColumnExpression | None
    constants: Mapping[str, Any]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the converted rows. Raises ValueError for a value that does not fit its type."""
        columns = {name: self._column(rows, name, kind) for name, kind in self.shared.items()}
        table = pa.table(columns) if columns else rows
        if self.filter is None:
            return table
        matches = self.filter(table).cast(pa.bool_()).fill_null(False)
        return table.select(self.names).append_column(KEPT, matches)

    def _column(self, rows: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        if name in rows.column_names and self.constants.get(name) is None:
            column = rows.column(name)
            if pa.types.is_timestamp(kind) and kind.tz and not getattr(column.type, "tz", "UTC"):
                column = pc.assume_timezone(column, "UTC")  # INT96 has no time zone
            return column if column.type == kind else exact_cast(column, kind)
        value = pa.scalar(self.constants.get(name), kind)
        return pa.chunked_array([pa.repeat(value, rows.num_rows)], kind)


class VersionedReader(ParquetReader):
    """Reads the columns `names` of a table. KEPT marks the rows for which the filter `where` is
    true. A row group is not read if its statistics show that the filter removes all its rows."""

    sampled_files = 8

    def __init__(self, version: TableVersion, names: Sequence[str], where: str | None) -> None:
        """Raises BadInput if the table lacks a column, or the filter does not fit the columns."""
        self._version, self._names = version, list(names)
        self._columns = self._names
        self._filter = ColumnExpression("read.options.filter", where) if where else None
        needed = dict.fromkeys([*names, *(self._filter.columns if self._filter else ())])
        for name in needed:
            option = "columns" if name in names else "filter"
            check_known(option, name, version.schema.names, version.name)
        self._schema = pa.schema(list(map(version.schema.field, needed)))
        if self._filter is not None:
            _check_condition(self._filter, self._schema)
        options = SimpleNamespace(columns=list(needed), int96="us", duplicate_columns="fail")
        self._options = cast(Any, options)
        self._deleted = NO_POSITIONS
        self._casts = cast(Any, self._typed({}))

    def _typed(self, constants: Mapping[str, Any]) -> TypedRows:
        shared = dict(zip(self._schema.names, self._schema.types, strict=True))
        return TypedRows(shared, self._names, self._filter, constants)

    def for_file(
        self, constants: Mapping[str, Any] | None, deleted: bytes | None
    ) -> VersionedReader:
        reader = copy.copy(self)
        reader._casts = cast(Any, self._typed(constants or {}))
        reader._deleted = positions_in(deleted)
        return reader

    def use_schemas(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Do nothing, because the table defines the types of its columns."""

    def types(self) -> dict[str, pa.DataType]:
        return {name: self._schema.field(name).type for name in self._names}

    def stats(self, file: Location, size: int) -> FileStats:
        try:
            stats = super().stats(file, size)
        except FileNotFoundError:
            raise removed_file(self._version, file.uri) from None
        return FileStats(stats.rows, stats.starts)

    def read_part(
        self, file: Location, start: int, stop: int | None, gaps: Sequence[RowRange] = ()
    ) -> Iterator[Chunk]:
        try:
            yield from super().read_part(file, start, stop, gaps)
        except FileNotFoundError:
            raise removed_file(self._version, file.uri) from None

    def _edges(self, footer: pq.FileMetaData) -> list[int]:
        """Return the edges as in the base class, but without counting deleted rows."""
        return [edge - bisect_left(self._deleted, edge) for edge in super()._edges(footer)]

    def _group(self, opened: OpenParquet, group: int) -> Iterator[Chunk]:
        first, after = super()._edges(opened.footer)[group : group + 2]
        if self._skips(opened.footer, group):
            rows = after - first - len(self._deleted_in(first, after))
            for start in range(0, rows, CHUNK_ROWS):
                yield BadRow(FILTERED, min(CHUNK_ROWS, rows - start))
            return
        for chunk in super()._group(opened, group):
            size = size_of(chunk)
            live = np.ones(size, dtype=bool)
            live[self._deleted_in(first, first + size) - first] = False
            first += size
            if live.all():
                yield chunk
            elif isinstance(chunk, BadRow):
                yield from [BadRow(chunk.error, int(live.sum()))] * bool(live.any())
            else:
                yield chunk.filter(pa.array(live))

    def _deleted_in(self, first: int, after: int) -> np.ndarray:
        return self._deleted[bisect_left(self._deleted, first) : bisect_left(self._deleted, after)]

    @cached_property
    def condition(self) -> pc.Expression | None:
        """The filter as an expression of Arrow; None if there is no filter."""
        return None if self._filter is None else self._filter.arrow(self._schema)

    def _skips(self, footer: pq.FileMetaData, group: int) -> bool:
        """Return whether the statistics of a row group show that no row matches the filter."""
        if self.condition is None:
            return False
        return not matching(self.condition, self._schema, [self._bounds(footer, group)])

    def _bounds(self, footer: pq.FileMetaData, group: int) -> FileBounds:
        return bounds_of_group(footer, group, self._schema.names)


def _check_condition(where: ColumnExpression, schema: pa.Schema) -> None:
    kind = where(schema.empty_table()).type
    if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise BadInput(f"read.options.filter is {kind}, not a condition. Compare it with a value")


def removed_file(version: TableVersion, uri: str) -> BadInput:
    """Return the error about a data file that no longer exists."""
    fix = "Read a later version, write it to a new output" if version.since is None else START_OVER
    return BadInput(
        f"read: the data file {uri} of version {version.version} of {version.name} is gone: it was "
        f"vacuumed or deleted. {fix}, and let the table keep removed files longer than the "
        "time between two runs"
    )


START_OVER = "Set write.mode to overwrite to compute all rows again"
