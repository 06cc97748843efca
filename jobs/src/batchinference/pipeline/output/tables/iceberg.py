"""Writes Iceberg tables: adds or merges the rows of a job in one snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.table import Table as ExistingTable
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.transforms import IdentityTransform

from batchinference.pipeline.commit.table_commit import MARK, SERIES, Fence, TableFiles
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.tables import (
    check_partitions_kept,
    columns_to_store,
    common_types,
    lake_types,
    partitions_of,
    typed_columns,
)
from batchinference.pipeline.output.tables.iceberg_merge import IcebergMerge, keys_in
from batchinference.pipeline.output.tables.keys import MergingTable
from batchinference.pipeline.storage.arrow_files import refuse_pickles
from batchinference.pipeline.storage.iceberg_catalog import open_catalog, table_in
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.type_widening import unify_schemas
from batchinference.spec.write import WriteIceberg


class IcebergTable(MergingTable):
    only_typed = True

    def __init__(self, write: WriteIceberg) -> None:
        self._write = write
        self.key = tuple(write.key or ())
        self._merging: IcebergMerge | None = None
        self.partition_by = tuple(write.partition_by or ())
        self._data_location: tuple[FileIO, str] | None = None

    def load(self) -> None:
        catalog = self._catalog()
        existing = table_in(catalog, self._write)
        if existing is None:
            self._check_creation(catalog)
        else:
            name, partitions = f"'{self._write.table}'", self._partitions_in(existing)
            self.partition_by = partitions_of(name, self.partition_by, partitions)
            self.types = _columns_of(existing)

    def convert(self, table: pa.Table) -> pa.Table:
        return lake_types(table, self.types, Catalog._convert_schema_if_needed, "Iceberg")

    def find_data_location(self) -> None:
        catalog = self._catalog()
        existing = table_in(catalog, self._write)
        if existing is None:
            self._create_namespace(catalog)
            self._data_location = self._new_location(catalog)
        else:
            self._data_location = existing.io, existing.location()

    def stage_content(self, file: Location, content: bytes) -> str | Location:
        if self.key:
            return file
        if self._data_location is None:
            raise BadOutput("write: the location of the table is unknown")
        io, location = self._data_location
        address = f"{location.rstrip('/')}/data/{uuid.uuid4()}.parquet"
        with io.new_output(address).create() as stream:
            stream.write(self.without_null_columns(content))
        return address

    def _new_location(self, catalog: Catalog) -> tuple[FileIO, str]:
        """Return the location that the catalog would give to the new table. Changes nothing. Raises
        BadOutput if the catalog has no location for the table."""
        try:  # this transaction is never committed
            staged = catalog.create_table_transaction(self._write.table, pa.schema([]))
        except ValueError as error:
            raise BadOutput(
                f"write.catalog: the catalog has no place for the new table '{self._write.table}' "
                f"({error}). Set 'warehouse' in write.catalog.properties, or create the table"
            ) from None
        return staged._table.io, staged.table_metadata.location

    def _check_creation(self, catalog: Catalog) -> None:
        """Raise an exception if the table cannot be created. Leaves no new namespace behind."""
        created = self._create_namespace(catalog)
        try:
            self._new_location(catalog)
        finally:
            if created:
                with suppress(Exception):  # another job has put a table into it
                    catalog.drop_namespace(self._namespace)

    @property
    def _namespace(self) -> str:
        return self._write.table.rpartition(".")[0]

    def _create_namespace(self, catalog: Catalog) -> bool:
        """Create the namespace if it is missing. Return whether this call has created it."""
        if catalog.namespace_exists(self._namespace):
            return False
        try:
            catalog.create_namespace(self._namespace)
        except NamespaceAlreadyExistsError:
            return False
        return True

    def existing(self) -> ExistingTable | None:
        return table_in(self._catalog(), self._write)

    def commit_count_in(self, existing: ExistingTable, mark: str) -> int:
        summaries = (snapshot.summary for snapshot in existing.snapshots())
        commits = [summary.additional_properties for summary in summaries if summary is not None]
        return sum(mark in (properties.get(MARK), properties.get(SERIES)) for properties in commits)

    def keys_in(self, existing: ExistingTable) -> Iterator[pa.Table]:
        return keys_in(existing.transaction(), self.key)

    def head(self, existing: ExistingTable, count: int) -> pa.Table:
        return refuse_pickles(existing.scan(limit=count).to_arrow())

    def register(self, rows: TableFiles, fence: Fence) -> None:
        conflicts = (CommitFailedException, TableAlreadyExistsError)
        fence.retry_conflicts(lambda: self._register(rows, fence), conflicts)

    def _register(self, rows: TableFiles, fence: Fence) -> None:
        catalog = self._catalog()
        table = table_in(catalog, self._write)
        if table is not None:
            self._put(table, rows, fence)
        elif schema := columns_to_store(rows, self.columns(rows), self.partition_by):
            self._create_namespace(catalog)
            with catalog.create_table_transaction(self._write.table, schema) as creation:
                if self.partition_by:
                    with creation.update_spec() as update:
                        for column in self.partition_by:
                            update.add_identity(column)
                self._add(creation, rows, fence)

    def _put(self, table: ExistingTable, rows: TableFiles, fence: Fence) -> None:
        if fence.has_committed(partial(self.commit_count_in, table)):
            return
        # no retries by pyiceberg, because it would not check the marks of the new commits
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        self.check_rows(table, self._write)
        if not self.key:  # a merge divides its rows by the table's present partition columns
            name, partitions = f"'{self._write.table}'", self._partitions_in(table)
            check_partitions_kept("table", name, self.partition_by, partitions)
        with table.transaction() as transaction:
            if self._write.mode == "overwrite":
                transaction.delete(AlwaysTrue(), {} if rows.files else fence.marks)
            if rows.files:
                _widen(transaction, table, typed_columns(rows.schema, self.partition_by))
            self._add(transaction, rows, fence)

    def _add(self, transaction: Transaction, rows: TableFiles, fence: Fence) -> None:
        """Add the rows to a transaction, which the caller commits right afterwards."""
        if rows.keys is not None:
            names = typed_columns(rows.schema).names
            self._merging = self._merging or IcebergMerge(rows.keys, rows.files, names)
            self._merging.apply(transaction, fence.marks)
        elif rows.files:
            transaction.add_files(rows.files, fence.marks)
        fence.check()

    def _catalog(self) -> Catalog:
        return open_catalog(self._write, self._write.path, self._write.storage, "write")

    def _partitions_in(self, table: ExistingTable) -> list[str]:
        """Return the partition columns of a table. Raises BadOutput if the table is partitioned by
        parts of values, such as the days of timestamps."""
        fields = table.spec().fields
        hidden = [each for each in fields if not isinstance(each.transform, IdentityTransform)]
        if hidden:
            raise BadOutput(
                f"write.table '{self._write.table}' is partitioned by {hidden[0].transform} of "
                f"{hidden[0].name}, and only partitions by whole values can be written"
            )
        return [table.schema().find_column_name(field.source_id) or "" for field in fields]


def _columns_of(table: ExistingTable) -> pa.Schema:
    return common_types(table.schema().as_arrow().empty_table()).schema


def _widen(transaction: Transaction, table: ExistingTable, schema: pa.Schema) -> None:
    """Add the columns of `schema` that the table lacks to the schema of the table."""
    before = _columns_of(table)
    unified = unify_schemas([before, schema])
    if not unified.equals(before):
        with transaction.update_schema() as update:
            update.union_by_name(unified)
