"""Table outputs, one module per format. The library of a format is imported only if a job needs it.

1. Tasks commit Parquet files, as in a job that writes files. The files are not in the table yet, so
   retried tasks and failed passes add no rows to the table.
2. When no row is missing, the driver unifies the schemas of the files. `Table.stage` copies each
   file to the files of the table. Staged files are never deleted: the table may refer to them.
3. `Table.register` makes all rows visible in one commit (but see `upserts`).

The commit stores two marks. The ID of the pass shows that the commit was made, even if the driver
died right after it. The ID of the series (all passes over these rows) is accepted only once. A
delayed driver therefore cannot commit the rows again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from batchinference.pipeline.arrow import empty_table, tensors_to_lists
from batchinference.pipeline.commit.manifest import DataFile, ManifestEntry
from batchinference.pipeline.commit.table_commit import (
    CommittedTable,
    TableFiles,
    has_rows_error,
    table_errors_as_bad_output,
)
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.file_rewrites import unchanged_content
from batchinference.pipeline.output.file_split import FileSplit, partition_column, partitions
from batchinference.pipeline.output.writers import Writer
from batchinference.pipeline.output.writers.parquet import ParquetWriter, missing_type, storable
from batchinference.pipeline.storage.arrow_files import open_parquet, parquet_footer, schema_in
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.type_widening import (
    TypeMismatch,
    cast_column,
    cast_to,
    is_complete,
    is_list,
    map_nulls,
    unify_field,
)

if TYPE_CHECKING:
    from batchinference.spec.write import WriteTable

Row = dict[str, Any]


class Table(Writer, CommittedTable):
    """A table to which a job writes. Also the writer of the Parquet files that tasks commit."""

    parquet: ClassVar[ParquetWriter] = ParquetWriter("zstd")
    only_typed: ClassVar[bool] = False
    """Whether the table has only the columns of `typed_columns`."""
    partition_by: tuple[str, ...] = ()
    types: pa.Schema | None = None
    """The columns of the existing table, which rows must fit; None if rows may have any types."""

    def open(self, planned: pa.Schema) -> None:
        """Read the columns of the table if it exists. Raises BadOutput if rows with the columns
        `planned`, which are certain before any row is computed, do not fit the table.

        Runs on the driver before the first task, and does not change the table."""
        with table_errors_as_bad_output():
            self.load()
            self.converted(empty_table(planned))
            for name in self.file_partitions:
                if self.types is not None and name in self.types.names:
                    partition_column(empty_table(self.types), name)

    @abstractmethod
    def load(self) -> None:
        """Set `types` and `partition_by`. Raises BadOutput if the job cannot write to the table."""

    @abstractmethod
    def convert(self, table: pa.Table) -> pa.Table:
        """Return rows with types that the format has. Raises BadOutput if a value does not fit."""

    def converted(self, table: pa.Table) -> pa.Table:
        """Return rows with the columns of the table, in their order and types, and then new
        columns. Columns that the rows lack are null. New columns are nullable, because rows of
        other tasks may have nulls in them. Raises BadOutput if a value does not fit."""
        converted = self.convert(table)
        optional = pa.schema([field.with_nullable(True) for field in converted.schema])
        try:
            rows = pa.table(converted.columns, schema=optional)
            return cast_to(rows, self.table_schema(rows.column_names))
        except TypeMismatch as error:
            raise BadOutput(
                f"write: column '{error.column}' is {error.other} in the table, and {error.one} in "
                f"the rows ({error.error}). Give the column one type in a step"
            ) from None

    def table_schema(self, names: Sequence[str]) -> pa.Schema:
        """Return the columns to which `converted` casts rows with the columns `names`. By default,
        these are all columns of the existing table."""
        return self.types or pa.schema([])

    @property
    def file_partitions(self) -> tuple[str, ...]:
        """The columns by which tasks divide rows into files. Each has one value per file."""
        return self.partition_by

    def columns(self, rows: TableFiles) -> pa.Schema:
        """Return the columns of a table that is created for these rows."""
        return self.convert(empty_table(rows.schema)).schema

    def files(self, table: pa.Table) -> Iterator[tuple[str, memoryview]]:
        for error in self.unwritable(table).values():
            raise error
        layout = FileSplit(partition_by=self.file_partitions)
        rows = layout.columns_to_write(self.converted(table))
        self._check_with_earlier(rows.schema)
        for _, partition in partitions(rows, self.file_partitions):
            yield ".parquet", self.parquet.write([partition])

    def _check_with_earlier(self, schema: pa.Schema) -> None:
        """Raise BadOutput if no type can hold the values of a column in this file and in earlier
        files of the task. Files of different tasks are compared at the end of the job."""
        for field in schema:
            earlier = self._seen.get(field.name, field)
            if (both := unify_field([earlier, field])) is None:
                raise _mixed_types(f"column '{field.name}' is {earlier.type} and {field.type}")
            self._seen[field.name] = both

    @cached_property
    def _seen(self) -> dict[str, pa.Field]:
        """A field for each column. Its type holds the values in all earlier files of the task."""
        return {}

    @staticmethod
    def schema_and_rows(content: bytes) -> tuple[pa.Schema, int]:
        """Return the schema and the number of rows of a Parquet file."""
        file = open_parquet(pa.BufferReader(content))
        return file.schema_arrow.remove_metadata(), file.metadata.num_rows

    def without_null_columns(self, content: bytes, without: Sequence[str] = ()) -> bytes:
        """Return a Parquet file without the columns `without` and without columns of type null.
        Partition columns of type null remain."""
        schema, _ = self.schema_and_rows(content)
        typed = typed_columns(schema, self.partition_by)
        remaining = pa.schema([field for field in typed if field.name not in without])
        if remaining.equals(schema):
            return content
        rows = self.parquet.read(content).select(remaining.names)
        return bytes(self.parquet.write([rows.cast(remaining)]))

    def remark(self, schema: pa.Schema) -> str:
        """Return a note for the report about columns of rows that the table lacks, or no text."""
        typed = typed_columns(schema, self.partition_by).names if self.only_typed else schema.names
        if left_out := [f"'{name}'" for name in schema.names if name not in typed]:
            problem = "all values are null, and their type is unknown"
            fix = "To add such a column, declare its type in read.options.types"
            return f"write: the table does not have {', '.join(left_out)}: {problem}. {fix}"
        return ""

    def find_data_location(self) -> None:
        """Find out where the files of the table are. Runs on the driver, before `stage`."""

    def stage(self, data: Location, file: DataFile, schema: pa.Schema) -> Any:
        """Check a committed file, and return the result of `stage_content`. The rows are not yet
        visible in the table.

        Runs in tasks. Raises BadOutput if the file has changed or has other types than `schema`."""
        with table_errors_as_bad_output():
            content = unchanged_content(data, file)
            for field, stored in zip(schema, self.schema_and_rows(content)[0], strict=True):
                if field.type != stored.type:
                    problem = f"column '{field.name}' is {field.type}, and a value is {stored.type}"
                    raise _mixed_types(problem)
            return self.stage_content(data / file.name, content)

    def stage_content(self, file: Location, content: bytes) -> Any:
        """Copy a Parquet file to the files of the table, under a new name. Return a description of
        the copy for `register`. By default, return the committed file, which `register` reads."""
        return file

    @abstractmethod
    def existing(self) -> Any:
        """Return the table, opened by the library of the format; None if it does not exist."""

    def commit_count_in(self, existing: Any, mark: str) -> int:
        """Return the number of commits of an opened table that have this mark."""
        raise NotImplementedError

    @abstractmethod
    def head(self, existing: Any, count: int) -> pa.Table | list[Row]:
        """Return up to `count` rows of an opened table. Returns Arrow if the library of the format
        does, because Python values lose nanoseconds."""

    def commit_count(self, mark: str) -> int:
        existing = self.existing()
        return 0 if existing is None else self.commit_count_in(existing, mark)

    def rows(self, count: int) -> pa.Table | list[Row]:
        """Return up to `count` rows as `head` does; no rows if the table does not exist."""
        existing = self.existing()
        return [] if existing is None else self.head(existing, count)

    def first_rows(self, count: int) -> list[Row]:
        """Return up to `count` rows of the table as Python values."""
        rows = self.rows(count)
        return rows if isinstance(rows, list) else list(rows.to_pylist())

    def holds_rows(self) -> bool:
        return len(self.rows(1)) > 0

    def check_rows(self, existing: Any, write: WriteTable) -> None:
        """Raise BadOutput if the mode is `error` and an opened table has rows. Call this in each
        try of a commit, because other writers may have added rows since the last try."""
        if write.mode == "error" and len(self.head(existing, 1)) > 0:
            raise has_rows_error(write)


def schema_of_all(data: Location, entries: Sequence[ManifestEntry]) -> pa.Schema:
    """Return the schema of the data files of all entries. Raises BadOutput if a column still has
    different types after the files were rewritten."""
    types: dict[str, str] = {}
    for name, kind in (column for entry in entries for column in entry.columns):
        if types.setdefault(name, kind) != kind:
            raise _mixed_types(f"column '{name}' is {types[name]} and {kind}")
    file = entries[0].data[0]
    return parquet_footer(data / file.name, file.bytes).schema.to_arrow_schema().remove_metadata()


def schema_without_rows(schemas: Sequence[str]) -> pa.Schema:
    """Return the schema of an output without rows: the first of `schemas`, which are texts from
    `schema_text`. Return an empty schema if the list is empty or the schema has an unknown type."""
    complete = [schema for schema in map(schema_in, schemas[:1]) if is_complete(schema)]
    return complete[0] if complete else pa.schema([])


def _mixed_types(problem: str) -> BadOutput:
    return BadOutput(
        f"write: the rows have different types for a column ({problem}). Give the column one type "
        "in a step"
    )


def partitions_of(table: str, requested: Sequence[str], existing: Sequence[str]) -> tuple[str, ...]:
    """Return the partition columns of a table. Raises BadOutput if the job names other columns."""
    if requested and list(requested) != list(existing):
        raise BadOutput(
            f"write.partitionBy: the table {table} is partitioned by "
            f"{', '.join(existing) or 'nothing'}. Name the same columns, or leave it out"
        )
    return tuple(existing)


def check_partitions_kept(
    field: str, table: str, before: Sequence[str], now: Sequence[str]
) -> None:
    """Raise BadOutput if the partition columns of a table are no longer those of the files. Readers
    would get wrong values for the changed columns."""
    if list(before) != list(now):
        columns, earlier = ", ".join(now) or "none", ", ".join(before) or "none"
        raise BadOutput(
            f"write.{field}: the partition columns of the table {table} have changed during the "
            f"job ({columns}, before {earlier}). Restore them and run the job again, or choose "
            f"another {field}"
        )


def typed_columns(schema: pa.Schema, partition_by: Sequence[str] = ()) -> pa.Schema:
    """Return the schema without columns of type null, because readers return null for a missing
    column. The type null of partition columns, and in lists and structs, becomes text."""
    typed = (each for each in schema if each.type != pa.null() or each.name in partition_by)
    return pa.schema([each.with_type(map_nulls(each.type)) for each in typed])


def columns_to_store(rows: TableFiles, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """Return the columns of `schema` as `typed_columns` does. Raises BadOutput if there are rows,
    but no column in which they could be stored."""
    typed = typed_columns(schema, partition_by)
    if rows.files and not typed.names:
        raise BadOutput(
            "write: the table cannot have columns without a type, and all values of all columns "
            f"are null ({', '.join(schema.names)}). Declare their types in read.options.types"
        )
    return typed


def name_error(owner: str, name: str, problem: str) -> BadOutput:
    """Return the error for a name that a column of `owner`, such as a table, cannot have."""
    return BadOutput(
        f"write.columns: {owner} cannot have a column with the name '{name}' ({problem}). Leave it "
        "out, or rename it in a step or in the input"
    )


def check_columns(columns: Sequence[str], existing: Sequence[str], table: str) -> None:
    """Raise BadOutput if the table lacks a column of the rows."""
    if missing := [name for name in columns if name not in existing]:
        raise BadOutput(
            f"{table} has no column '{missing[0]}', only {', '.join(existing)}. Choose other "
            "columns in write.columns"
        )


def has_versions(log: Location, *suffixes: str) -> bool:
    """Return whether a table has a version: a file in the directory `log` with one of the suffixes.
    Files of a version that is not complete yet have other suffixes."""
    return any(info.base_name.endswith(suffixes) for info in log.files())


def check_case(columns: Sequence[str], existing: Sequence[str] = ()) -> None:
    """Raise BadOutput if the name of a new column differs only in case from another name. Readers
    of the table ignore case."""
    known = {name.lower(): name for name in existing}
    for name in columns:
        other = known.setdefault(name.lower(), name)
        if other != name and name not in existing:
            raise BadOutput(
                f"write.columns: the columns '{other}' and '{name}' differ only in case, which the "
                f"table does not tell apart. Rename '{name}' in a step, or leave it out"
            )


def common_types(table: pa.Table) -> pa.Table:
    """Return rows with types that all table formats support: signed numbers of 32 or 64 bits,
    timestamps in microseconds, no dictionaries. Raises BadOutput if a value does not fit."""
    fields = [field.with_type(_common(field.type)) for field in table.schema]
    columns = [_converted(*pair) for pair in zip(table.columns, fields, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


def lake_types(
    table: pa.Table, existing: pa.Schema | None, make: Callable[[pa.Schema], object], name: str
) -> pa.Table:
    """Return rows with types that the format `name` supports. `make` converts a schema to this
    format. Raises BadOutput if `make` fails for a column, or if names differ only in case."""
    check_case(table.column_names, existing.names if existing is not None else ())
    table = common_types(storable(tensors_to_lists(table), name))
    check_types(typed_columns(table.schema), make, name)
    return table


def check_types(schema: pa.Schema, make: Callable[[pa.Schema], object], name: str) -> None:
    """Raise BadOutput for a column that `make` cannot convert to the format `name`."""
    for field in schema:
        try:
            make(pa.schema([field]))
        except Exception:  # noqa: BLE001 - libraries raise a plain Exception
            raise missing_type(field, name) from None


def _converted(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return cast_column(column, field.type)
    except pa.ArrowInvalid as error:
        raise BadOutput(
            f"write: a value of column '{field.name}' ({column.type}) does not fit its type in "
            f"tables, {field.type} ({error}). Round the column in a step, or make it text"
        ) from None


_COMMON = {
    **dict.fromkeys((pa.int8(), pa.uint8(), pa.int16(), pa.uint16()), pa.int32()),
    **dict.fromkeys((pa.uint32(), pa.uint64()), pa.int64()),
    **{pa.float16(): pa.float32(), pa.date64(): pa.date32(), pa.time32("s"): pa.time64("us")},
    **{pa.time32("ms"): pa.time64("us"), pa.time64("ns"): pa.time64("us")},
    **{pa.large_string(): pa.string(), pa.large_binary(): pa.binary()},
    **{pa.string_view(): pa.string(), pa.binary_view(): pa.binary()},
    **{pa.json_(pa.string()): pa.string(), pa.bool8(): pa.bool_()},
}


def _common(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _common(kind.value_type)
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_map(kind):
        return pa.map_(_common(kind.key_type), _common(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_common(field.type)) for field in kind])
    return pa.list_(_common(kind.value_type)) if is_list(kind) else _COMMON.get(kind, kind)
