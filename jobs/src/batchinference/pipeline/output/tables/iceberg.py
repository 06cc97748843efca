"""Writes Iceberg tables: tasks write Parquet files, and the commit adds them as one snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.table import Table as ExistingTable
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.transforms import IdentityTransform

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.table_commit import MARK, SERIES, Fence
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.file_layout import partitions
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
from batchinference.pipeline.storage.object_stores import iceberg_properties
from batchinference.spec.databases import names_class
from batchinference.spec.write import WriteIceberg

_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class IcebergTable(Table):
    def __init__(self, write: WriteIceberg) -> None:
        self._write = write
        self._append = write.mode == "append"
        self._partition_by = tuple(write.partition_by or ())
        self._expected: pa.Schema | None = None
        self._place: tuple[FileIO, str] | None = None

    def begin(self, schema: pa.Schema) -> None:
        catalog = self._catalog()
        existing = self._table(catalog)
        self._expected = expected_schema(common_types(tensors_to_lists(schema.empty_table())))
        if existing is None:
            catalog.create_namespace_if_not_exists(self._write.table.rpartition(".")[0])
            # this transaction is never committed: it provides the location of the new table
            staged = catalog.create_table_transaction(self._write.table, pa.schema([]))
            self._place = staged._table.io, staged.table_metadata.location
            return
        self._check_partitions(existing)
        self._place = existing.io, existing.location()
        if self._append:
            self._expected = common_types(existing.schema().as_arrow().empty_table()).schema

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        if self._place is None:
            raise BadOutput("write: the table was not begun")
        io, place = self._place
        table = aligned(common_types(tensors_to_lists(table)), self._expected)
        for _, rows in partitions(table, self._partition_by):
            ((ending, content),) = ParquetWriter("zstd").files(without_nulls(rows))
            name = f"data/{uuid.uuid4()}{ending}"
            with io.new_output(f"{place.rstrip('/')}/{name}").create() as file:
                file.write(bytes(content))
            yield receipt(expected_schema(table), name=name)

    def create(self, schema: pa.Schema) -> None:
        catalog = self._catalog()
        if is_complete(schema) and self._table(catalog) is None:
            schema = common_types(tensors_to_lists(schema.empty_table())).schema
            catalog.create_namespace_if_not_exists(self._write.table.rpartition(".")[0])
            with catalog.create_table_transaction(self._write.table, schema) as creation:
                _partition(creation, self._partition_by)

    def commits(self, mark: str) -> int:
        table = self._table(self._catalog())
        return 0 if table is None else _commits(table, mark)

    def commit(self, receipts: list[Location], fence: Fence) -> None:
        found = read_receipts(receipts, lambda entry: [entry["name"]])
        fence.put(
            lambda: self._commit(found, fence), (CommitFailedException, TableAlreadyExistsError)
        )

    def _commit(self, found: list[Receipt], fence: Fence) -> None:
        catalog = self._catalog()
        table = self._table(catalog)
        if table is not None:
            self._put(table, found, fence)
        elif found:
            schema = unified([entry["schema"] for entry in found])
            with catalog.create_table_transaction(self._write.table, schema) as creation:
                _partition(creation, self._partition_by)
                creation.add_files(_files(creation, found), fence.marks)
                fence.check()

    def _put(self, table: ExistingTable, found: list[Receipt], fence: Fence) -> None:
        if fence.is_passed(partial(_commits, table)):
            return
        # after a conflict, pyiceberg would retry without a check of the new commits' marks
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        with table.transaction() as transaction:
            if not self._append:
                transaction.delete(AlwaysTrue(), {} if found else fence.marks)
            if found:
                _widen(transaction, table, [entry["schema"] for entry in found])
                transaction.add_files(_files(transaction, found), fence.marks)
            fence.check()

    def first_rows(self, count: int) -> list[Row]:
        table = self._table(self._catalog())
        return (
            [] if table is None else list(checked(table.scan(limit=count).to_arrow()).to_pylist())
        )

    def _catalog(self) -> Catalog:
        configured = self._write.catalog.properties
        warehouse = configured.get("warehouse", "")
        defaults = iceberg_properties(
            warehouse if "://" in warehouse else self._write.path, self._write.storage
        )
        catalog = load_catalog(self._write.catalog.name, **defaults | configured)
        _refuse_imports_of_tables(catalog)
        return catalog

    def _table(self, catalog: Catalog) -> ExistingTable | None:
        try:
            return catalog.load_table(self._write.table)
        except NoSuchTableError:
            return None

    def _check_partitions(self, table: ExistingTable) -> None:
        fields = table.spec().fields
        if hidden := [
            field for field in fields if not isinstance(field.transform, IdentityTransform)
        ]:
            raise BadOutput(
                f"write.table '{self._write.table}' is partitioned by {hidden[0].transform} of "
                f"{hidden[0].name}, and only partitions by whole values can be written"
            )
        existing = [table.schema().find_column_name(field.source_id) or "" for field in fields]
        self._partition_by = partitions_of(f"'{self._write.table}'", self._partition_by, existing)


def _files(transaction: Transaction, found: list[Receipt]) -> list[str]:
    """Return the full paths of the files in receipts. Receipts name them relative to the table."""
    place = transaction.table_metadata.location.rstrip("/")
    return [f"{place}/{entry['name']}" for entry in found]


def _refuse_imports_of_tables(catalog: Catalog) -> None:
    """Make a catalog refuse tables whose properties name a class to import. Anyone who can write to
    a table can set its properties."""
    load = catalog._load_file_io

    def guarded(
        properties: Mapping[str, str] = _NO_PROPERTIES, location: str | None = None
    ) -> FileIO:
        for name, value in properties.items():
            if names_class(name) and catalog.properties.get(name) != value:
                raise BadOutput(
                    f"write.table: the property '{name}' of the table names a class to import, "
                    "which could run any code. Remove it, or set the same property in pyiceberg's "
                    "own configuration"
                )
        return load(dict(properties), location)

    catalog._load_file_io = guarded  # type: ignore[method-assign]


def _commits(table: ExistingTable, mark: str) -> int:
    summaries = (snapshot.summary for snapshot in table.snapshots())
    found = (summary.additional_properties for summary in summaries if summary is not None)
    return sum(mark in (properties.get(MARK), properties.get(SERIES)) for properties in found)


def _partition(creation: Transaction, columns: tuple[str, ...]) -> None:
    if columns:
        with creation.update_spec() as update:
            for column in columns:
                update.add_identity(column)


def _widen(transaction: Transaction, table: ExistingTable, schemas: list[pa.Schema]) -> None:
    """Add the columns that the table lacks to its schema."""
    before = common_types(table.schema().as_arrow().empty_table()).schema
    whole = unified([before, *schemas])
    if not whole.equals(before):
        with transaction.update_schema() as update:
            update.union_by_name(whole)
