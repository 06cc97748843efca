"""Reads the wanted columns of a Parquet file, with unique names and exact INT96 timestamps."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.arrow import empty_table
from batchinference.pipeline.column_names import unique_names
from batchinference.pipeline.storage.arrow_files import refuse_pickles, row_group_tables
from batchinference.pipeline.type_widening import is_list, register_tensors, without_views
from batchinference.spec.reserved import OWN_PREFIX

if TYPE_CHECKING:
    from batchinference.spec.read import ParquetOptions

# INT96 is the timestamp type of Hive, Impala and old versions of Spark. No Arrow type holds all its
# values. In nanoseconds, Arrow covers only the years 1677 to 2262. In microseconds, it lacks three
# digits. It would silently wrap around or drop digits. So an INT96 column is read in both units,
# and the values are compared.

Unit = Literal["us", "ns"]
OTHER_UNIT: dict[Unit, Unit] = {"us": "ns", "ns": "us"}
_MAX_MICROSECONDS = (2**63 - 1) // 1000
"""The largest number of microseconds that fits into nanoseconds (int64)."""


def schema_of(footer: pq.FileMetaData, unit: Unit) -> pa.Schema:
    """Return the schema of a file with this unit for INT96 timestamps, by its footer."""
    empty = pa.BufferReader(b"")
    return pq.ParquetFile(empty, metadata=footer, coerce_int96_timestamp_unit=unit).schema_arrow


def int96_columns(footer: pq.FileMetaData) -> list[int]:
    """Return the indexes of the columns that are or contain INT96 timestamps."""
    leaves = map(footer.schema.column, range(footer.num_columns))
    if all(leaf.physical_type != "INT96" for leaf in leaves):
        return []
    types = (schema_of(footer, unit).types for unit in OTHER_UNIT)
    return [index for index, (one, other) in enumerate(zip(*types, strict=True)) if one != other]


def with_other_unit(
    tables: Iterable[pa.Table], others: Iterator[pa.Table], names: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the tables with the columns in `names` added once more, in the other unit. `others`
    yields these added columns for the same rows, in tables of other sizes."""
    rest = next(others)
    for table in tables:
        while rest.num_rows < table.num_rows:
            rest = pa.concat_tables([rest, next(others)])
        part, rest = rest.slice(0, table.num_rows), rest.slice(table.num_rows)
        for name in names:
            table = table.append_column(f"{OWN_PREFIX}{name}", part.column(name))  # noqa: PLW2901
        yield table


def _check(name: str, unit: Unit, micros: np.ndarray, nanos: np.ndarray) -> None:
    """Raise ValueError if `unit` cannot hold times exactly. Both arrays have the same times."""
    if unit == "ns" and np.abs(micros).max(initial=0) > _MAX_MICROSECONDS:
        raise ValueError(
            f"column '{name}': an INT96 timestamp is outside of the years 1677 to 2262, which "
            "nanoseconds can hold. Set read.options.int96: us"
        )
    if unit == "us" and (nanos - micros * 1000).any():  # true as well if both wrapped around
        raise ValueError(
            f"column '{name}': an INT96 timestamp has nanoseconds, and it is read as microseconds. "
            "Set read.options.int96: ns"
        )


def _timestamps(array: pa.Array) -> Iterator[pa.Array]:
    """Yield each array of timestamps in an array, including nested arrays."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        yield array
    elif pa.types.is_map(kind):
        yield from [*_timestamps(array.keys), *_timestamps(array.items)]
    elif is_list(kind):
        yield from _timestamps(array.flatten())
    elif pa.types.is_struct(kind):
        for inner in array.flatten():
            yield from _timestamps(inner)


def _numbers(timestamps: pa.Array) -> np.ndarray:
    return np.asarray(timestamps.cast(pa.int64()).fill_null(0).to_numpy())


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
        names: list[str] = schema.names
        self._names = unique_names(names) if options.duplicate_columns == "rename" else names
        self._wanted = frozenset(options.columns or self._names)
        self._stored = list(zip(names, self._names, strict=True))
        fields = zip(schema, self._names, strict=True)
        refuse_pickles(pa.schema([field for field, name in fields if name in self._wanted]))
        self._int96 = [
            self._names[index]
            for index in int96_columns(footer)
            if self._names[index] in self._wanted
        ]

    def _opened(self, unit: Unit) -> pq.ParquetFile:
        return pq.ParquetFile(
            self._source, metadata=self.footer, pre_buffer=True, coerce_int96_timestamp_unit=unit
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns as rows name them, without views, which Arrow cannot compare. An
        unwanted column, whose type may be unsafe, has the type null."""
        stored = self._rows.schema_arrow.types
        types = map(without_views, stored)
        pairs = zip(self._names, types, strict=True)
        typed = [(name, kind if name in self._wanted else pa.null()) for name, kind in pairs]
        return pa.schema(typed)

    def tables(self, group: int) -> Iterator[pa.Table]:
        """Yield the rows of a row group in tables. Call `exact` with each table, or its slices."""
        tables = self._tables(self._rows, group, self._wanted)
        if not self._int96:
            return tables
        other = self._opened(OTHER_UNIT[self._options.int96])
        return with_other_unit(tables, self._tables(other, group, self._int96), self._int96)

    def empty(self) -> pa.Table:
        """Return the wanted columns without rows."""
        return _renamed(empty_table(self._rows.schema_arrow), self._stored, self._wanted)

    def exact(self, table: pa.Table) -> pa.Table:
        """Return rows from `tables` without the columns that `tables` has added. Raises ValueError
        if a timestamp is not exact."""
        unit = self._options.int96
        for name in self._int96:
            columns = table.column(name), table.column(f"{OWN_PREFIX}{name}")
            read, in_other_unit = (list(_timestamps(column.combine_chunks())) for column in columns)
            micros, nanos = (read, in_other_unit) if unit == "us" else (in_other_unit, read)
            for pair in zip(micros, nanos, strict=True):
                _check(name, unit, *map(_numbers, pair))
        return table.drop_columns([f"{OWN_PREFIX}{name}" for name in self._int96])

    def _tables(
        self, opened: pq.ParquetFile, group: int, wanted: Container[str]
    ) -> Iterator[pa.Table]:
        read = [stored for stored, name in self._stored if name in wanted]
        columns = None if len(read) == len(self._stored) else read
        for table in row_group_tables(opened, group, columns):
            yield _renamed(table, self._stored, wanted)


def _renamed(table: pa.Table, names: Sequence[tuple[str, str]], wanted: Container[str]) -> pa.Table:
    """Return the wanted columns of a table, renamed. `names` has the stored name and the new name
    of each column of the file. Raises UnsafeColumn if a column holds pickles. A name with a dot
    needs this check, because pyarrow then also reads the field of a struct."""
    stored = set(table.column_names)
    unique = [name for each, name in names if each in stored]
    indexes = [index for index, name in enumerate(unique) if name in wanted]
    if unique != table.column_names:
        table = table.rename_columns(unique)
    return refuse_pickles(table if len(indexes) == len(unique) else table.select(indexes))
