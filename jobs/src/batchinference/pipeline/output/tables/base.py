"""What a table is to a job, and how rows take the form of one.

Rows become visible in one commit, when the driver has seen that all of them are there. Until then a
write task puts its rows where no reader of the table looks, and leaves a receipt, which the task's
manifest names as it names files: so a task that is tried again, and an attempt that fails, leave
nothing behind that counts. The commit carries a mark, by which a driver that died right after it
is known to have done it, and one of its series, which keeps drivers apart that were held up.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pyarrow as pa

from batchinference.pipeline.commit.table_commit import CommittedTable
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.arrow_files import schema_of
from batchinference.pipeline.storage.checksummed_json import load_json
from batchinference.pipeline.storage.location import Location, is_inside

READ_THREADS = 16
Row = dict[str, Any]
Receipt = dict[str, Any]


class Table(CommittedTable, Protocol):
    """A table. In write tasks it is the writer of receipts."""

    def begin(self, schema: pa.Schema) -> None:
        """Told on the driver, before the first write task: the columns of the first rows.

        Raises BadOutput when the table cannot take the rows."""

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes | memoryview]]:
        """Put rows where nobody sees them; yield the receipts of it."""

    def first_rows(self, count: int) -> list[Row]:
        """Some rows of the table."""


def receipt(schema: pa.Schema, **fields: Any) -> tuple[str, bytes]:
    """The file of a receipt: how its name ends, and its bytes."""
    stored = base64.b64encode(schema.serialize()).decode()
    return ".json", json.dumps({"schema": stored, **fields}).encode()


def read_receipts(
    addresses: list[Location], paths: Callable[[Receipt], Iterable[str]]
) -> list[Receipt]:
    """Read receipts. `paths` are those that one names, relative to the table.

    Raises BadOutput for a receipt that is damaged, or names a file outside the table: whoever can
    write to the output could have it read another file."""
    with ThreadPoolExecutor(READ_THREADS) as pool:
        return list(pool.map(lambda address: _read_receipt(address, paths), addresses))


def _read_receipt(address: Location, paths: Callable[[Receipt], Iterable[str]]) -> Receipt:
    content = address.read()
    try:
        entry: Receipt = load_json(content)
        entry["schema"] = schema_of(base64.b64decode(entry["schema"]))
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
    """The schema of all rows. Raises BadOutput when a column has several types."""
    try:
        return pa.unify_schemas([schema.remove_metadata() for schema in schemas])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise BadOutput(
            f"write: a table takes one type a column, and the rows differ: {error}. Give the "
            "column one type in a step"
        ) from None


def aligned(table: pa.Table, expected: pa.Schema | None) -> pa.Table:
    """The table with the columns of `expected`, in their order and with their types, before its
    others; what it lacks is null. Raises BadOutput for values that do not fit."""
    if expected is None:
        return table
    columns = {field.name: _fitted(table, field) for field in expected}
    others = {name: table.column(name) for name in table.column_names if name not in columns}
    fields = [*expected, *(table.schema.field(name) for name in others)]
    return pa.table([*columns.values(), *others.values()], schema=pa.schema(fields))


def _fitted(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    column = table.column(field.name)
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadOutput(
            f"write: column '{field.name}' is {field.type} in the table or its first rows, and "
            f"{column.type} in others, which does not fit: {error}"
        ) from None


def expected_schema(table: pa.Table) -> pa.Schema:
    """What the first rows tell of the others: nothing of columns that are null in all of them."""
    return pa.schema([field for field in table.schema if not pa.types.is_null(field.type)])


def without_nulls(table: pa.Table) -> pa.Table:
    """The table without columns that have no type; a reader finds null in their place."""
    return table.select(expected_schema(table).names)


def common_types(table: pa.Table) -> pa.Table:
    """The table in types that table formats have: signed whole numbers of 32 and 64 bits, floats of
    32 and 64, timestamps in microseconds, and no dictionaries. Raises BadOutput for values that
    these cannot hold."""
    fields = [field.with_type(_common(field.type)) for field in table.schema]
    columns = [_converted(*pair) for pair in zip(table.columns, fields, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


def _converted(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise BadOutput(
            f"write: column '{field.name}' is {column.type}, which such a table keeps as "
            f"{field.type}, and a value does not fit: {error}. Round the column in a step, or make "
            "it text"
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
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_common(kind.value_type))
    return _COMMON.get(kind, kind)
