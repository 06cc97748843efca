"""Reads Parquet files with pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.readers import (
    CHUNK_ROWS,
    BadRow,
    Chunk,
    DivisibleReader,
    FileStats,
    StatsReader,
    blamed,
)
from batchinference.pipeline.input.readers import after as after_rows
from batchinference.pipeline.input.readers import first as first_rows
from batchinference.pipeline.schema import shared_types, with_types
from batchinference.pipeline.storage.arrow_files import (
    check_footer,
    checked,
    parquet_footer,
    parquet_metadata,
    row_group_tables,
)
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import ParquetOptions

TAIL_BYTES = 1 << 13
"""Bytes that are read from the end of a file first. Most footers fit into them."""


class ParquetReader(StatsReader, DivisibleReader):
    extensions = ("parquet",)
    rows_exact = True

    def __init__(self, options: ParquetOptions) -> None:
        self._wanted = options.columns
        self._columns: list[str] | None = None
        self._types: dict[str, pa.DataType] = {}

    def use_schemas(self, schemas: Mapping[str, pa.Schema]) -> None:
        for uri, schema in list(schemas.items())[:1]:
            if missing := sorted(set(self._wanted or []) - set(schema.names)):
                raise BadInput(
                    f"read.options.columns: {uri} has no column '{missing[0]}', "
                    f"only {', '.join(schema.names)}"
                )
            self._columns = self._wanted or schema.names
        self._types = shared_types({uri: self._chosen(schema) for uri, schema in schemas.items()})

    def _chosen(self, schema: pa.Schema) -> pa.Schema:
        wanted = self._wanted or schema.names
        return pa.schema([field for field in schema if field.name in wanted])

    def read(self, file: Location) -> Iterator[Chunk]:
        return self.read_part(file, 0, None)

    def read_part(self, file: Location, start: int, stop: int | None) -> Iterator[Chunk]:
        with file.filesystem.open_input_file(file.path) as source:
            try:
                opened = pq.ParquetFile(source, metadata=self._metadata(source), pre_buffer=True)
            except Exception as error:  # noqa: BLE001 - see blamed
                yield BadRow(blamed(error))
                return
            if not opened.metadata.num_rows:
                yield with_types(self._wanted_of(opened.schema_arrow.empty_table()), self._types)
            for group, (first, after) in enumerate(pairwise(_edges(opened.metadata))):
                begin, end = max(start, first), after if stop is None else min(stop, after)
                if begin < end:
                    chunks = self._group(opened, group, source.size())
                    yield from first_rows(end - begin, after_rows(begin - first, chunks))

    def _group(self, opened: pq.ParquetFile, group: int, size: int) -> Iterator[Chunk]:
        """Yield the rows of a row group of a file of `size` bytes. If it is damaged, or its types
        do not match the types of other files, the remaining rows become failed rows."""
        rows = opened.metadata.row_group(group).num_rows
        try:
            for whole in row_group_tables(opened, group, size, self._wanted):
                table = with_types(self._wanted_of(whole), self._types)
                rows -= table.num_rows
                yield table
        except Exception as error:  # noqa: BLE001 - see blamed
            cause = blamed(error)
            for start in range(0, rows, CHUNK_ROWS):
                yield BadRow(cause, min(CHUNK_ROWS, rows - start))

    def _wanted_of(self, table: pa.Table) -> pa.Table:
        """Return the wanted columns. For a dotted name, pyarrow also reads the field of a struct.
        The check by column name does not cover that field, so the selected columns are checked
        here."""
        names = table.column_names  # duplicate names are refused later
        wanted = [place for place, name in enumerate(names) if name in (self._wanted or names)]
        return checked(table.select(wanted))

    def stats(self, file: Location, size: int) -> FileStats:
        footer = parquet_footer(file, size)
        check_footer(footer, size)
        schema = footer.schema.to_arrow_schema()
        wanted = checked(self._chosen(schema)).names
        # the types of other columns are not needed, and may be unsafe
        types = (field.type if field.name in wanted else pa.null() for field in schema)
        schema = pa.schema(list(zip(schema.names, types, strict=True)))
        return FileStats(footer.num_rows, _edges(footer)[:-1] or [0], schema)

    def rows_in(self, file: Location, size: int) -> int | None:
        return self.stats(file, size).rows

    def columns(self) -> list[str] | None:
        return self._columns

    def _metadata(self, source: pa.NativeFile) -> pq.FileMetaData:
        """Return the footer. Raises UnsafeColumn if a wanted column holds pickles."""
        footer = _metadata(source)
        checked(self._chosen(footer.schema.to_arrow_schema()))
        return footer


def _edges(footer: pq.FileMetaData) -> list[int]:
    """Return the first row of each row group, followed by the total number of rows."""
    sizes = (footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    return list(accumulate(sizes, initial=0))


def _metadata(source: pa.NativeFile) -> pq.FileMetaData:
    """Return the footer of a file. Reads TAIL_BYTES first, because Arrow would read 64 KiB, which
    may be more than the wanted rows. Raises ArrowInvalid if the file is not a Parquet file."""
    size = source.size()
    end = source.read_at(min(TAIL_BYTES, size), max(0, size - TAIL_BYTES))
    length = int.from_bytes(end[-8:-4], "little") + 8
    if len(end) < length <= size:
        end = source.read_at(length, size - length)
    footer = parquet_metadata(pa.BufferReader(end[-length:] if length <= len(end) else end))
    check_footer(footer, size)
    return footer
