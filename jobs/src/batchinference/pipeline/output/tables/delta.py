"""Writes Delta Lake tables: adds or merges the rows of a job in one transaction."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from batchinference.pipeline.commit.table_commit import Fence, TableFiles
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.file_split import partitions
from batchinference.pipeline.output.tables import (
    check_partitions_kept,
    columns_to_store,
    has_versions,
    lake_types,
    partitions_of,
    typed_columns,
)
from batchinference.pipeline.output.tables.keys import MergingTable
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.storage.arrow_files import refuse_pickles, tables_in
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.partitions import value_text
from batchinference.pipeline.type_widening import cast_to, exact_cast, is_text, unify_schemas
from batchinference.spec.write import WriteDelta

MAX_ROWS = (1 << 31) - 1
"""The largest limit on the number of rows that pyarrow accepts."""


class DeltaLakeTable(MergingTable):
    parquet = ParquetWriter("snappy")
    only_typed = True

    def __init__(self, write: WriteDelta) -> None:
        self._write = write
        address = Location(write.path, write.storage)
        self._address = address.without_links_below(address)
        self._adds = write.adds
        self.key = tuple(write.key or ())
        self.partition_by = tuple(write.partition_by or ())

    def load(self) -> None:
        table = self.existing()
        if table is not None:
            where, columns = f"at '{self._address.uri}'", table.metadata().partition_columns
            self.partition_by = partitions_of(where, self.partition_by, columns)
            self.types = pa.schema(table.schema().to_arrow()) if self._adds else None

    def convert(self, table: pa.Table) -> pa.Table:
        table = lake_types(table, self.types, Schema.from_arrow, "Delta")
        # Delta has no UUIDs, and its readers refuse UUIDs in Parquet files. So UUIDs become texts
        # if the column of the table has texts, and bytes otherwise
        texts = {field.name for field in self.types or () if is_text(field.type)}
        for index, field in enumerate(table.schema):
            if field.type == pa.uuid():
                kind = pa.string() if field.name in texts else pa.binary()
                table = table.set_column(index, field.name, exact_cast(table.column(index), kind))
        for name in self.partition_by:
            if name in table.column_names and "" in pc.unique(table.column(name)).to_pylist():
                raise BadOutput(
                    f"write.partitionBy: column '{name}' has an empty text, which Delta reads as "
                    "null. Give such rows another text in a step, or partition by other columns"
                )
        return table

    def stage_content(self, file: Location, content: bytes) -> AddAction | Location:
        if self.key:
            return file
        _, count = self.schema_and_rows(content)
        values, directory = {}, ""
        if self.partition_by:
            rows = self.parquet.read(content)
            values = _values(rows, self.partition_by)
            ((directory, _),) = partitions(rows, self.partition_by)
        content = self.without_null_columns(content, self.partition_by)
        name = f"{directory}/" * bool(directory) + f"part-{uuid.uuid4()}.parquet"
        (self._address / name).write(content)
        stats = json.dumps({"numRecords": count})
        return AddAction(name, len(content), values, int(time.time() * 1000), True, stats)

    def existing(self) -> DeltaTable | None:
        if not has_versions(self._address / "_delta_log", ".json", ".parquet"):
            return None
        options = self._address.storage_options
        return DeltaTable(self._address.library_uri, storage_options=options)

    def commit_count_in(self, existing: DeltaTable, mark: str) -> int:
        return int(existing.transaction_version(_application(mark)) is not None)

    def head(self, existing: DeltaTable, count: int) -> pa.Table:
        return refuse_pickles(existing.to_pyarrow_dataset().head(min(count, MAX_ROWS)))

    def keys_in(self, existing: DeltaTable) -> Iterator[pa.Table]:
        names = ", ".join(map(_quoted, self.key))
        batches = QueryBuilder().register("rows", existing).execute(f"SELECT {names} FROM rows")  # noqa: S608 - quoted names
        yield from (pa.table(batch) for batch in pa.RecordBatchReader.from_stream(batches))

    def register(self, rows: TableFiles, fence: Fence) -> None:
        fence.retry_conflicts(lambda: self._register(rows, fence), (CommitFailedError,))

    def _register(self, rows: TableFiles, fence: Fence) -> None:
        table = self.existing()
        # Delta reports a conflict if a concurrent commit has one of the same transaction IDs
        marks = fence.commit_id, fence.series_id
        transactions = [Transaction(_application(mark), 1) for mark in marks]
        # `error` and `overwrite` commit only to the version opened here (no retries): other writers
        # may have added rows, which were not checked and would get the new schema
        retries = None if self._adds else 0
        properties = CommitProperties(max_commit_retries=retries, app_transactions=transactions)
        if rows.keys is not None:
            self._merge(table or self._empty(rows), rows, properties, fence)
        elif table is None:
            self._create(rows, properties, fence)
        elif rows.files:
            self._put(table, rows, properties, fence)
        elif not self._adds and not fence.has_committed(partial(self.commit_count_in, table)):
            self.check_rows(table, self._write)
            fence.check()
            table.delete(commit_properties=properties)

    def _create(self, rows: TableFiles, properties: CommitProperties, fence: Fence) -> None:
        schema = columns_to_store(rows, self.columns(rows), self.partition_by)
        if not schema:
            return
        fence.check()
        with self._conflict_if_created():
            create_table_with_add_actions(
                self._address.library_uri,
                Schema.from_arrow(schema),
                rows.files,
                partition_by=list(self.partition_by) or None,
                storage_options=self._address.storage_options,
                commit_properties=properties,
            )

    @contextmanager
    def _conflict_if_created(self) -> Iterator[None]:
        """Turn a DeltaError into CommitFailedError if the table exists after the error."""
        try:
            yield
        except DeltaError as error:
            if self.existing() is None:
                raise
            raise CommitFailedError(str(error)) from error

    def _put(
        self, table: DeltaTable, rows: TableFiles, properties: CommitProperties, fence: Fence
    ) -> None:
        where, columns = f"at '{self._address.uri}'", table.metadata().partition_columns
        check_partitions_kept("path", where, self.partition_by, columns)
        schema = columns_to_store(rows, rows.schema, self.partition_by)
        if self._adds:
            schema = self._widen(table, schema)
        if fence.has_committed(partial(self.commit_count_in, table)):
            return
        self.check_rows(table, self._write)
        fence.check()
        table.create_write_transaction(
            rows.files,
            "append" if self._adds else "overwrite",
            Schema.from_arrow(schema),
            partition_by=list(self.partition_by) or None,
            commit_properties=properties,
        )

    def _empty(self, rows: TableFiles) -> DeltaTable:
        """Create the table without rows unless it exists, and return it."""
        with self._conflict_if_created():
            return DeltaTable.create(
                self._address.library_uri,
                Schema.from_arrow(typed_columns(self.columns(rows), self.partition_by)),
                mode="ignore",
                partition_by=list(self.partition_by) or None,
                storage_options=self._address.storage_options,
            )

    def _merge(
        self, table: DeltaTable, rows: TableFiles, properties: CommitProperties, fence: Fence
    ) -> None:
        schema = typed_columns(rows.schema)
        unified = self._widen(table, schema)
        if fence.has_committed(partial(self.commit_count_in, table)):
            return
        rows.keys.check_unique_in_table(rows.keys.matched_numbers(self.keys_in(table)))
        fence.check()
        values = {_quoted(name): f"source.{_quoted(name)}" for name in schema.names}
        same = " AND ".join(f"target.{name} = source.{name}" for name in map(_quoted, self.key))
        source = _stream(rows.files, pa.schema([unified.field(name) for name in schema.names]))
        merged = table.merge(source, same, "source", "target", commit_properties=properties)
        # with the update clause, there is always a commit, even if no row is inserted
        merged.when_matched_update(values).when_not_matched_insert(values).execute()

    def _widen(self, table: DeltaTable, schema: pa.Schema) -> pa.Schema:
        """Add columns of `schema` to the table if it lacks them. Return the table's new schema."""
        before = pa.schema(table.schema().to_arrow())
        unified = unify_schemas([before, schema])
        if new := [field for field in unified if field.name not in before.names]:
            table.alter.add_columns(Schema.from_arrow(pa.schema(new)).fields)
            table.update_incremental()
        return unified


def _stream(files: Sequence[Location], schema: pa.Schema) -> pa.RecordBatchReader:
    """Return a reader of the rows of Parquet files. Rows are cast to `schema` in small tables."""
    tables = (cast_to(table, schema) for file in files for table in tables_in(file))
    batches = (batch for table in tables for batch in table.select(schema.names).to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _application(mark: str) -> str:
    return f"batchinference-{mark}"


def _values(rows: pa.Table, names: Sequence[str]) -> dict[str, str | None]:
    """Return the value of the first row as text for each partition column in `names`; all rows have
    the same values. The directory name may have only the beginning of a long value."""
    first = {name: rows.column(name)[0].as_py() for name in names}
    return {name: None if value is None else value_text(value) for name, value in first.items()}
