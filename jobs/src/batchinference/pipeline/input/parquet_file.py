"""Reads the wanted columns of a Parquet file, with unique names and exact timestamps."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.column_names import unique_names
from batchinference.pipeline.input.int96 import (
    OTHER_UNIT,
    Unit,
    int96_columns,
    schema_of,
    with_other_unit,
    without_other_unit,
)
from batchinference.pipeline.schema import register_tensors
from batchinference.pipeline.storage.arrow_files import checked, row_group_tables

if TYPE_CHECKING:
    from batchinference.spec.read import ParquetOptions


def schema_of_rows(footer: pq.FileMetaData, options: ParquetOptions) -> pa.Schema:
    """Return the columns of a file with their names in the rows. Columns that are not wanted have
    the type null. Raises UnsafeColumn if a wanted column holds pickles."""
    schema = _schema_of(footer, options.int96)
    if register_tensors(schema):
        schema = _schema_of(footer, options.int96)
    names = names_of(schema, options)
    wanted = set(options.columns or names)
    _check_wanted(schema, names, wanted)
    # the types of other columns are not needed, and may be unsafe
    pairs = zip(names, schema.types, strict=True)
    return pa.schema([(name, kind if name in wanted else pa.null()) for name, kind in pairs])


def _schema_of(footer: pq.FileMetaData, unit: Unit) -> pa.Schema:
    return schema_of(footer, unit) if int96_columns(footer) else footer.schema.to_arrow_schema()


def _check_wanted(schema: pa.Schema, names: list[str], wanted: Container[str]) -> None:
    fields = zip(schema, names, strict=True)
    checked(pa.schema([field for field, name in fields if name in wanted]))


def names_of(schema: pa.Schema, options: ParquetOptions) -> list[str]:
    """Return the names of all columns of a file, as they are in the rows."""
    names: list[str] = schema.names
    return unique_names(names) if options.duplicate_columns == "rename" else names


class OpenParquet:
    """A Parquet file that is being read. Raises UnsafeColumn if a wanted column holds pickles."""

    def __init__(
        self, source: pa.NativeFile, footer: pq.FileMetaData, options: ParquetOptions
    ) -> None:
        self.footer, self._source, self._options = footer, source, options
        self._rows = self._opened(options.int96)
        if register_tensors(self._rows.schema_arrow):
            self._rows = self._opened(options.int96)
        schema = self._rows.schema_arrow
        self._names = names_of(schema, options)
        self._wanted = options.columns or self._names
        self._stored = list(zip(schema.names, self._names, strict=True))
        _check_wanted(schema, self._names, self._wanted)
        self._int96 = [
            self._names[index]
            for index in int96_columns(footer)
            if self._names[index] in self._wanted
        ]

    def _opened(self, unit: Unit) -> pq.ParquetFile:
        return pq.ParquetFile(
            self._source, metadata=self.footer, pre_buffer=True, coerce_int96_timestamp_unit=unit
        )

    def tables(self, group: int) -> Iterator[pa.Table]:
        """Yield the rows of a row group. `exact` removes further columns from parts of them."""
        tables = self._tables(self._rows, group, self._wanted)
        if not self._int96:
            return tables
        other = self._opened(OTHER_UNIT[self._options.int96])
        return with_other_unit(tables, self._tables(other, group, self._int96), self._int96)

    def empty(self) -> pa.Table:
        """Return the wanted columns without rows."""
        schema = self._rows.schema_arrow
        names = list(zip(schema.names, self._names, strict=True))
        return _renamed(schema.empty_table(), names, self._wanted)

    def exact(self, table: pa.Table) -> pa.Table:
        """Return rows of `tables`. Raises ValueError if a timestamp is not exact."""
        if not self._int96:
            return table
        return without_other_unit(table, self._int96, self._options.int96)

    def _tables(
        self, opened: pq.ParquetFile, group: int, wanted: Sequence[str]
    ) -> Iterator[pa.Table]:
        read = [stored for stored, name in self._stored if name in wanted]
        columns = None if len(read) == len(self._stored) else read
        for table in row_group_tables(opened, group, columns):
            yield _renamed(table, self._stored, wanted)


def _renamed(table: pa.Table, names: Sequence[tuple[str, str]], wanted: Container[str]) -> pa.Table:
    """Return the wanted columns of a table. `names` has the stored and the unique name of each
    column of the file. For a dotted name, pyarrow also reads the field of a struct. The check by
    column name does not cover that field, so the selected columns are checked here."""
    stored = set(table.column_names)
    unique = [name for each, name in names if each in stored]
    chosen = [place for place, name in enumerate(unique) if name in wanted]
    if unique != table.column_names:
        table = table.rename_columns(unique)
    return checked(table if len(chosen) == len(unique) else table.select(chosen))
