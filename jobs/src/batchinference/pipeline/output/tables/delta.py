"""Writes Delta Lake tables: tasks write Parquet files, the commit adds them in one transaction."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, create_table_with_add_actions

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.table_commit import Fence
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.file_layout import FileLayout, partitions, value_text
from batchinference.pipeline.output.tables import (
    Receipt,
    Row,
    Table,
    aligned,
    common_types,
    expected_schema,
    partitions_of,
    read_receipts,
    receipt,
    unified,
    without_nulls,
)
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.schema import is_complete
from batchinference.pipeline.storage.arrow_files import checked
from batchinference.pipeline.storage.location import Location
from batchinference.spec.write import WriteDelta

MAX_ROWS = (1 << 31) - 1
"""The largest number of rows that pyarrow takes as a limit."""


class DeltaLakeTable(Table):
    def __init__(self, write: WriteDelta) -> None:
        address = Location(write.path, write.storage)
        self._address = address.without_links_below(address)
        self._append = write.mode == "append"
        self._partition_by = tuple(write.partition_by or ())
        self._expected: pa.Schema | None = None

    def begin(self, schema: pa.Schema) -> None:
        existing = self._table()
        if existing is not None:
            columns = existing.metadata().partition_columns
            self._partition_by = partitions_of(
                f"at '{self._address.uri}'", self._partition_by, columns
            )
        if self._append and existing is not None:
            self._expected = pa.schema(existing.schema().to_arrow())
        else:
            self._expected = expected_schema(common_types(tensors_to_lists(schema.empty_table())))

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        table = aligned(common_types(tensors_to_lists(table)), self._expected)
        _check_types(expected_schema(table))
        layout = FileLayout(partition_by=self._partition_by)
        for directory, partition in partitions(layout.chosen(table), layout.partition_by):
            values = _values(partition, self._partition_by)
            rows = partition.drop_columns(list(self._partition_by))
            ((ending, content),) = ParquetWriter("snappy").files(without_nulls(rows))
            name = f"{directory}/" * bool(directory) + f"part-{uuid.uuid4()}{ending}"
            (self._address / name).write(content)
            action = {"path": name, "size": len(content), "rows": rows.num_rows}
            yield receipt(expected_schema(table), **action, partitions=values)

    def create(self, schema: pa.Schema) -> None:
        if is_complete(schema) and self._table() is None:
            DeltaTable.create(
                self._address.library_uri,
                Schema.from_arrow(common_types(tensors_to_lists(schema.empty_table())).schema),
                mode="ignore",
                partition_by=list(self._partition_by) or None,
                storage_options=self._address.storage_options,
            )

    def commits(self, mark: str) -> int:
        table = self._table()
        return 0 if table is None else _commits(table, mark)

    def commit(self, receipts: list[Location], fence: Fence) -> None:
        found, table = read_receipts(receipts, lambda entry: [entry["path"]]), self._table()
        # Delta reports a conflict if a concurrent commit has one of these as well
        transactions = [Transaction(_application(mark), 1) for mark in (fence.mark, fence.series)]
        properties = CommitProperties(app_transactions=transactions)
        if table is None:
            self._create(found, properties, fence)
        elif found and not self._append:
            self._write(table, found, "overwrite", properties, fence)
        elif found:
            self._write(table, found, "append", properties, fence)
        elif not self._append and not fence.is_passed(partial(_commits, table)):
            fence.check()
            table.delete(commit_properties=properties)

    def _create(self, found: list[Receipt], properties: CommitProperties, fence: Fence) -> None:
        if not found:
            return
        schema = unified([entry["schema"] for entry in found])
        fence.check()
        create_table_with_add_actions(  # fails if the table exists by now
            self._address.library_uri,
            Schema.from_arrow(schema),
            [_action(entry) for entry in found],
            partition_by=list(self._partition_by) or None,
            storage_options=self._address.storage_options,
            commit_properties=properties,
        )

    def _write(
        self,
        table: DeltaTable,
        found: list[Receipt],
        mode: Literal["append", "overwrite"],
        properties: CommitProperties,
        fence: Fence,
    ) -> None:
        schema = unified([entry["schema"] for entry in found])
        if mode == "append":
            schema = self._widen(table, schema)
        if fence.is_passed(partial(_commits, table)):
            return
        actions = [_action(entry) for entry in found]
        fence.check()
        table.create_write_transaction(
            [*actions],
            mode,
            Schema.from_arrow(schema),
            partition_by=list(self._partition_by) or None,
            commit_properties=properties,
        )

    def first_rows(self, count: int) -> list[Row]:
        table = self._table()
        if table is None:
            return []
        found = table.to_pyarrow_dataset().head(min(count, MAX_ROWS))
        return list(checked(found).to_pylist())

    def _table(self) -> DeltaTable | None:
        if not (self._address / "_delta_log").files():
            return None
        options = self._address.storage_options
        return DeltaTable(self._address.library_uri, storage_options=options)

    def _widen(self, table: DeltaTable, schema: pa.Schema) -> pa.Schema:
        """Add the columns that the table lacks, and return the unified schema."""
        before = pa.schema(table.schema().to_arrow())
        whole = unified([before, schema])
        if new := [field for field in whole if field.name not in before.names]:
            table.alter.add_columns(Schema.from_arrow(pa.schema(new)).fields)
            table.update_incremental()
        return whole


def _check_types(schema: pa.Schema) -> None:
    """Raise BadOutput if Delta does not support a column's type, such as a time of day."""
    for field in schema:
        try:
            Schema.from_arrow(pa.schema([field]))
        except Exception:  # noqa: BLE001 - deltalake raises a plain Exception
            raise BadOutput(
                f"write: column '{field.name}' has a type that Delta does not have ({field.type}). "
                "Make it text in a step, or leave it out of write.columns"
            ) from None


def _commits(table: DeltaTable, mark: str) -> int:
    return int(table.transaction_version(_application(mark)) is not None)


def _application(mark: str) -> str:
    return f"batchinference-{mark}"


def _values(rows: pa.Table, names: Sequence[str]) -> dict[str, str | None]:
    """Return the values of the partition columns, which are the same in all rows. They are not read
    from the directory name, which may contain only a part of a long value.

    Raises BadOutput if a value is an empty text, which Delta's protocol reads as null."""
    values: dict[str, str | None] = {}
    for name in names:
        value = rows.column(name)[0].as_py()
        text = None if value is None else value_text(value)
        if text == "":
            raise BadOutput(
                f"write.partitionBy: column '{name}' has an empty text, which Delta reads as null. "
                "Give such rows another text in a step, or partition by other columns"
            )
        values[name] = text
    return values


def _action(entry: Receipt) -> AddAction:
    stats = json.dumps({"numRecords": entry["rows"]})
    now = int(time.time() * 1000)
    return AddAction(entry["path"], entry["size"], entry["partitions"], now, True, stats)
