"""Table outputs, one module per format. A format's library is imported only if a job writes it.

Tasks commit Parquet files, as for an output of files. Readers of the table do not see them, and a
retried task, a failed attempt or a pass over missing rows adds no rows to the table. After the
driver has checked that no rows are missing, the files get one schema, and `Table.place` puts the
rows of each where the table has its files. `Table.register` makes all of them visible in one
commit. A file that may be registered is never deleted.

The commit carries two marks. The first one identifies the commit. It shows that the commit was
made, even if the driver died right after it. The second one identifies a series of attempts: a
table takes one commit per series, so a delayed driver cannot commit the same rows again.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pyarrow as pa

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.manifest import DataFile, ManifestEntry
from batchinference.pipeline.commit.table_commit import (
    CommittedTable,
    TableFiles,
    table_errors_as_bad_output,
)
from batchinference.pipeline.errors import (
    DATABASES_EXTRA,
    FORMATS_EXTRA,
    BadOutput,
    require_package,
)
from batchinference.pipeline.output.file_layout import FileLayout, partitions
from batchinference.pipeline.output.file_rewrites import unchanged_content
from batchinference.pipeline.output.writers import Writer
from batchinference.pipeline.output.writers.parquet import ParquetWriter, storable
from batchinference.pipeline.storage.arrow_files import open_parquet, parquet_footer, schema_in
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.type_widening import (
    TypeMismatch,
    cast_to,
    is_complete,
    is_list,
    map_nulls,
    unify_field,
)

if TYPE_CHECKING:
    from batchinference.spec.write import Write, WriteTable

Row = dict[str, Any]


class Table(Writer, CommittedTable):
    """A table as the output of a job, and the writer of the files that tasks commit."""

    parquet: ClassVar[ParquetWriter] = ParquetWriter("zstd")
    partition_by: tuple[str, ...] = ()
    types: pa.Schema | None = None
    """The columns of the table that the rows must fit; None if they may have any types."""

    def open(self, planned: pa.Schema) -> None:
        """Read the columns of the table, if it exists. `planned` are the columns of the rows, as
        far as they are known before they are computed.

        Runs on the driver before the first task. Raises BadOutput if the table cannot take the
        rows. Nothing is changed."""
        with table_errors_as_bad_output():
            self.load()
            self.converted(planned.empty_table())

    @abstractmethod
    def load(self) -> None:
        """Set `types` and `partition_by` to those of the existing table. Raises BadOutput if the
        job cannot write to it."""

    @abstractmethod
    def convert(self, table: pa.Table) -> pa.Table:
        """Return rows with types that the format has. Raises BadOutput if it cannot hold them."""

    def converted(self, table: pa.Table) -> pa.Table:
        """Return rows with the columns of the table first, in their order and with their types, and
        then the other columns. Missing columns become null. Raises BadOutput if a value does not
        fit.

        The other columns may be null, as files of other tasks may have nulls in them."""
        converted = self.convert(table)
        optional = pa.schema([field.with_nullable(True) for field in converted.schema])
        try:
            rows = pa.table(converted.columns, schema=optional)
            return cast_to(rows, self.expected(rows.column_names))
        except TypeMismatch as error:
            raise BadOutput(
                f"write: column '{error.column}' is {error.other} in the table, and {error.one} in "
                f"the rows ({error.error}). Give the column one type in a step"
            ) from None

    def expected(self, names: Sequence[str]) -> pa.Schema:
        """Return the columns of the table that rows with these columns must have."""
        return self.types or pa.schema([])

    @property
    def file_partitions(self) -> tuple[str, ...]:
        """The columns that have one value in each file of a task."""
        return self.partition_by

    def columns(self, rows: TableFiles) -> pa.Schema:
        """Return the columns of a new table with these rows."""
        return self.convert(rows.schema.empty_table()).schema

    def files(self, table: pa.Table) -> Iterator[tuple[str, memoryview]]:
        for error in self.unwritable(table).values():
            raise error
        layout = FileLayout(partition_by=self.file_partitions)
        rows = layout.chosen(self.converted(table))
        self._check_with_earlier(rows.schema)
        for _, partition in partitions(rows, self.file_partitions):
            yield ".parquet", self.parquet.write([partition])

    def _check_with_earlier(self, schema: pa.Schema) -> None:
        """Raise BadOutput if no type holds the values of a column in this and earlier files of this
        task. All files are compared at the end of the job only."""
        for field in schema:
            earlier = self._seen.get(field.name, field)
            if (both := unify_field([earlier, field])) is None:
                raise _mixed_types(f"column '{field.name}' is {earlier.type} and {field.type}")
            self._seen[field.name] = both

    @cached_property
    def _seen(self) -> dict[str, pa.Field]:
        return {}

    @staticmethod
    def footer(content: bytes) -> tuple[pa.Schema, int]:
        """Return the schema of a Parquet file, and its number of rows."""
        file = open_parquet(pa.BufferReader(content))
        return file.schema_arrow.remove_metadata(), file.metadata.num_rows

    def stored(self, content: bytes, without: Sequence[str] = ()) -> bytes:
        """Return a Parquet file without the columns of type null that do not partition the table,
        and without the columns `without`."""
        schema, _ = self.footer(content)
        typed = typed_columns(schema, self.partition_by)
        kept = pa.schema([field for field in typed if field.name not in without])
        if kept.equals(schema):
            return content
        rows = self.parquet.read(content).select(kept.names)
        return bytes(self.parquet.write([rows.cast(kept)]))

    def find_place(self) -> None:
        """Find out where the files of the table are. Runs on the driver before `place`."""

    def place(self, data: Location, file: DataFile, schema: pa.Schema) -> Any:
        """Put the rows of a committed file where the files of the table are, under a new name. They
        are not visible yet. Return what `register` needs.

        Runs in tasks. Raises BadOutput if the file has changed, or has other types than `schema`
        because a value did not fit."""
        with table_errors_as_bad_output():
            content = unchanged_content(data, file)
            _check_same(self.footer(content)[0], schema)
            return self.put(data / file.name, content)

    @abstractmethod
    def put(self, file: Location, content: bytes) -> Any:
        """Put the rows of a Parquet file with this content where the files of the table are, and
        return what `register` needs."""

    @abstractmethod
    def existing(self) -> Any:
        """Return the table as its library opens it; None if it does not exist."""

    def commits_in(self, existing: Any, mark: str) -> int:
        """Return the number of commits with this mark in an opened table that has versions."""
        raise NotImplementedError

    @abstractmethod
    def head(self, existing: Any, count: int) -> list[Row]:
        """Return up to `count` rows of an opened table."""

    def commits(self, mark: str) -> int:
        existing = self.existing()
        return 0 if existing is None else self.commits_in(existing, mark)

    def first_rows(self, count: int) -> list[Row]:
        """Return up to `count` rows of the table."""
        existing = self.existing()
        return [] if existing is None else self.head(existing, count)

    def holds_rows(self) -> bool:
        return bool(self.first_rows(1))


def schema_of_all(data: Location, entries: Sequence[ManifestEntry]) -> pa.Schema:
    """Return the schema of the data files of these entries. Raises BadOutput if a column has types
    that no type can hold."""
    types: dict[str, str] = {}
    for name, kind in (column for entry in entries for column in entry.columns):
        if types.setdefault(name, kind) != kind:
            raise _mixed_types(f"column '{name}' is {types[name]} and {kind}")
    file = entries[0].data[0]
    return parquet_footer(data / file.name, file.bytes).schema.to_arrow_schema().remove_metadata()


def schema_without_rows(schemas: Sequence[str]) -> pa.Schema:
    """Return the first of these schemas, which are texts; no columns if a type is unknown."""
    found = [schema for schema in map(schema_in, schemas[:1]) if is_complete(schema)]
    return found[0] if found else pa.schema([])


def _check_same(found: pa.Schema, expected: pa.Schema) -> None:
    for one, other in zip(expected, found, strict=True):
        if one.type != other.type:
            problem = f"column '{one.name}' is {one.type}, and a value is {other.type}"
            raise _mixed_types(problem)


def _mixed_types(problem: str) -> BadOutput:
    return BadOutput(
        f"write: the rows have different types for a column ({problem}). Give the column one type "
        "in a step"
    )


def partitions_of(table: str, requested: Sequence[str], existing: Sequence[str]) -> tuple[str, ...]:
    """Return the partition columns of an existing table. Raises BadOutput if others are
    requested."""
    if requested and list(requested) != list(existing):
        raise BadOutput(
            f"write.partitionBy: the table {table} is partitioned by "
            f"{', '.join(existing) or 'nothing'}. Name the same columns, or leave it out"
        )
    return tuple(existing)


def typed_columns(schema: pa.Schema, partition_by: Sequence[str] = ()) -> pa.Schema:
    """Return the schema without columns of type null, for which readers return null, and with texts
    in place of values of type null in lists, structs and partition columns."""
    typed = [
        field for field in schema if not pa.types.is_null(field.type) or field.name in partition_by
    ]
    return pa.schema([field.with_type(map_nulls(field.type)) for field in typed])


def check_types(schema: pa.Schema, made: Callable[[pa.Schema], object], name: str) -> None:
    """Raise BadOutput if the format `name` does not have a column's type. `made` then raises any
    exception."""
    for field in typed_columns(schema):
        try:
            made(pa.schema([field]))
        except Exception:  # noqa: BLE001 - libraries raise a plain Exception
            raise BadOutput(
                f"write: column '{field.name}' has a type that {name} does not have "
                f"({field.type}). Make it text in a step, or leave it out of write.columns"
            ) from None


def check_columns(found: Sequence[str], existing: Sequence[str], table: str) -> None:
    """Raise BadOutput if a table lacks a column, and the job cannot add it."""
    if missing := [name for name in found if name not in existing]:
        raise BadOutput(
            f"{table} has no column '{missing[0]}', only {', '.join(existing)}. Choose other "
            "columns in write.columns"
        )


def check_case(found: Sequence[str], existing: Sequence[str] = ()) -> None:
    """Raise BadOutput if a new column differs only in case from an earlier one or from one that the
    table has, because readers of the table do not tell them apart."""
    known = {name.lower(): name for name in existing}
    for name in found:
        other = known.setdefault(name.lower(), name)
        if other != name and name not in existing:
            raise BadOutput(
                f"write.columns: the columns '{other}' and '{name}' differ only in case, which the "
                f"table does not tell apart. Rename '{name}' in a step, or leave it out"
            )


def common_types(table: pa.Table) -> pa.Table:
    """Return the table with types that all table formats have: signed integers of 32 and 64 bits,
    floats of 32 and 64 bits, timestamps in microseconds, and no dictionaries.

    Raises BadOutput if these types cannot hold a value."""
    fields = [field.with_type(_common(field.type)) for field in table.schema]
    columns = [_converted(*pair) for pair in zip(table.columns, fields, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


def lake_types(
    table: pa.Table,
    existing: pa.Schema | None,
    made: Callable[[pa.Schema], object],
    name: str,
) -> pa.Table:
    """Return rows with types that the format `name` of a table of files has (see `check_types`).

    Raises BadOutput if it cannot hold them next to the columns of an existing table."""
    check_case(table.column_names, existing.names if existing is not None else ())
    table = common_types(storable(tensors_to_lists(table)))
    check_types(table.schema, made, name)
    return table


def _converted(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise BadOutput(
            f"write: a value of column '{field.name}' ({column.type}) does not fit the table's "
            f"type {field.type} ({error}). Round the column in a step, or make it text"
        ) from None


_COMMON = {
    **dict.fromkeys((pa.int8(), pa.uint8(), pa.int16(), pa.uint16()), pa.int32()),
    **dict.fromkeys((pa.uint32(), pa.uint64()), pa.int64()),
    **{pa.float16(): pa.float32(), pa.date64(): pa.date32(), pa.time32("s"): pa.time64("us")},
    **{pa.time32("ms"): pa.time64("us"), pa.time64("ns"): pa.time64("us")},
    **{pa.large_string(): pa.string(), pa.large_binary(): pa.binary()},
    **{pa.string_view(): pa.string(), pa.binary_view(): pa.binary()},
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
    if is_list(kind):
        return pa.list_(_common(kind.value_type))
    return _COMMON.get(kind, kind)


TABLES = {
    "lance": ("LanceTable", "lance"),
    "delta": ("DeltaLakeTable", "deltalake"),
    "iceberg": ("IcebergTable", "pyiceberg"),
    "sql": ("SqlTable", "sqlalchemy"),
    "qdrant": ("QdrantTable", "qdrant_client"),
    "opensearch": ("OpensearchTable", "opensearchpy"),
}
"""The class of each format, and the library that it imports. A format's module has the name of the
format, and is imported when it is needed."""


def table_for(write: WriteTable) -> Table:
    """Return the table that a job writes. Raises BadOutput, which states what to install, if the
    format's library is missing."""
    name, library = TABLES[write.format]
    extra = DATABASES_EXTRA if write.format in ("qdrant", "opensearch") else FORMATS_EXTRA
    require_package(f"the format '{write.format}'", library, extra, BadOutput)
    module = importlib.import_module(f"{__name__}.{write.format}")
    return cast(Table, getattr(module, name)(write))


def table_of(write: Write) -> Table | None:
    """Return the table that a job writes, or None if it writes files."""
    return table_for(write) if write.format in TABLES else None  # type: ignore[arg-type]
