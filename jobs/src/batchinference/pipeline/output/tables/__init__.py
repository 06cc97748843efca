"""Table outputs, one module per format. A format's library is imported only if a job writes it.

Rows become visible in one commit, after the driver has checked that no rows are missing. Until then
a write task stores its rows where readers of the table do not see them. It also writes a receipt,
which the task's manifest lists like a data file. A retried task or a failed attempt therefore
adds no rows to the table.

The commit carries two marks. The first one identifies the commit. It shows that the commit was
made, even if the driver died right after it. The second one identifies a series of attempts: a
table takes one commit per series, so a delayed driver cannot commit the same rows again.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from batchinference.pipeline.commit.table_commit import CommittedTable
from batchinference.pipeline.errors import FORMATS_EXTRA, BadOutput, require_package
from batchinference.pipeline.schema import TypeMismatch, cast_to, is_list, unify_schemas
from batchinference.pipeline.storage.arrow_files import schema_in, schema_text
from batchinference.pipeline.storage.json import load_json
from batchinference.pipeline.storage.location import Location, is_inside

if TYPE_CHECKING:
    from batchinference.spec.write import Write, WriteTable

READ_THREADS = 16
Row = dict[str, Any]
Receipt = dict[str, Any]


class Table(CommittedTable, Protocol):
    """A table as the output of a job. In write tasks it is the writer of receipts."""

    def begin(self, schema: pa.Schema) -> None:
        """Prepare the table for rows with these columns.

        Runs on the driver before the first write task. `schema` is the schema of the first rows.
        Raises BadOutput if the table cannot take the rows."""

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes | memoryview]]:
        """Store rows where readers of the table do not see them, and yield their receipts."""

    def first_rows(self, count: int) -> list[Row]:
        """Return up to `count` rows of the table."""

    def holds_rows(self) -> bool:
        return bool(self.first_rows(1))


def partitions_of(table: str, requested: Sequence[str], existing: Sequence[str]) -> tuple[str, ...]:
    """Return the partition columns of an existing table. Raises BadOutput if others are
    requested."""
    if requested and list(requested) != list(existing):
        raise BadOutput(
            f"write.partitionBy: the table {table} is partitioned by "
            f"{', '.join(existing) or 'nothing'}: name the same columns, or leave it out"
        )
    return tuple(existing)


def receipt(schema: pa.Schema, **fields: Any) -> tuple[str, bytes]:
    """Return the file of a receipt: the end of its name, and its bytes."""
    return ".json", json.dumps({"schema": schema_text(schema), **fields}).encode()


def read_receipts(
    addresses: list[Location], paths: Callable[[Receipt], Iterable[str]]
) -> list[Receipt]:
    """Return the contents of receipts. `paths` returns the paths in one receipt, relative to the
    table.

    Raises BadOutput if a receipt is damaged, or names a file outside the table. Without this check,
    anyone who can write to the output could make the table read another file."""
    with ThreadPoolExecutor(READ_THREADS) as pool:
        return list(pool.map(lambda address: _read_receipt(address, paths), addresses))


def _read_receipt(address: Location, paths: Callable[[Receipt], Iterable[str]]) -> Receipt:
    content = address.read()
    try:
        entry: Receipt = load_json(content)
        entry["schema"] = schema_in(entry["schema"])
        damaged = not all(map(is_inside, paths(entry)))
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException):
        damaged = True
    if damaged:
        raise BadOutput(
            f"'{address.uri}' is damaged, so its rows cannot be committed: run the job again with "
            "resume: false"
        )
    return entry


def unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the unified schema of all rows. Raises BadOutput if a column has several types."""
    try:
        return unify_schemas(schema.remove_metadata() for schema in schemas)
    except TypeMismatch as error:
        raise BadOutput(
            f"write: the rows have different types for a column ({error}). Give the column one "
            "type in a step"
        ) from None


def aligned(table: pa.Table, expected: pa.Schema | None) -> pa.Table:
    """Return the table with the columns of `expected` first, in their order and with their types,
    and then its other columns. Missing columns become null.

    Raises BadOutput if values do not fit the types."""
    if expected is None:
        return table
    try:
        return cast_to(table, expected)
    except TypeMismatch as error:
        raise BadOutput(
            f"write: column '{error.column}' is {error.other} in the table or its first rows, and "
            f"{error.one} in others ({error.error}). Give the column one type in a step"
        ) from None


def expected_schema(table: pa.Table) -> pa.Schema:
    """Return the schema without columns of type null. Columns that are null in all of the first
    rows say nothing about the types in other rows."""
    return pa.schema([field for field in table.schema if not pa.types.is_null(field.type)])


def without_nulls(table: pa.Table) -> pa.Table:
    """Return the table without columns of type null. Readers return null for them."""
    return table.select(expected_schema(table).names)


def common_types(table: pa.Table) -> pa.Table:
    """Return the table with types that all table formats have: signed integers of 32 and 64 bits,
    floats of 32 and 64 bits, timestamps in microseconds, and no dictionaries.

    Raises BadOutput if these types cannot hold a value."""
    fields = [field.with_type(_common(field.type)) for field in table.schema]
    columns = [_converted(*pair) for pair in zip(table.columns, fields, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


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
}
"""The class of each format, and the library that it imports. A format's module has the name of the
format, and is imported when it is needed."""


def table_for(write: WriteTable) -> Table:
    """Return the table that a job writes. Raises BadOutput, which states what to install, if the
    format's library is missing."""
    name, library = TABLES[write.format]
    require_package(f"the format '{write.format}'", library, FORMATS_EXTRA, BadOutput)
    module = importlib.import_module(f"{__name__}.{write.format}")
    return cast(Table, getattr(module, name)(write))


def table_of(write: Write) -> Table | None:
    """Return the table that a job writes, or None if it writes files."""
    return table_for(write) if write.format in TABLES else None  # type: ignore[arg-type]
