"""Writes Lance datasets: one version adds the fragments made of Parquet files."""

from __future__ import annotations

import json
from functools import partial

import lance
import pyarrow as pa
from lance.commit import CommitConflictError
from lance.fragment import FragmentMetadata, write_fragments

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.table_commit import MARK, SERIES, Fence, TableFiles
from batchinference.pipeline.output.tables import Row, Table, check_columns
from batchinference.pipeline.output.writers.parquet import ParquetWriter, without_empty_structs
from batchinference.pipeline.schema import is_tensor
from batchinference.pipeline.storage.arrow_files import checked
from batchinference.pipeline.storage.location import Location
from batchinference.spec.write import WriteLance


class LanceTable(Table):
    # Lance refuses to append lists whose elements have another name
    parquet = ParquetWriter("zstd", names_of_lists=True)

    def __init__(self, write: WriteLance) -> None:
        self._address = Location(write.path, write.storage)
        self._append = write.mode == "append"

    def load(self) -> None:
        dataset = self._dataset()
        if dataset is not None and self._append:
            self.types = dataset.schema

    def convert(self, table: pa.Table) -> pa.Table:
        if self.types is not None:
            where = f"write.path: the dataset '{self._address.uri}'"
            check_columns(table.column_names, self.types.names, where)
        return without_empty_structs(_with_vectors(table))

    def put(self, file: Location, content: bytes) -> list[str]:
        table = self.converted(self.parquet.read(content))  # Parquet has changed some types
        mode = "append" if self._append else "overwrite"
        fragments = write_fragments(
            table,
            self._address.library_uri,
            schema=table.schema,
            mode="create" if self._dataset() is None else mode,
            storage_options=self._address.storage_options,
        )
        return [json.dumps(fragment.to_json()) for fragment in fragments]

    def commits(self, mark: str) -> int:
        dataset = self._dataset()
        return 0 if dataset is None else _commits(dataset, mark)

    def register(self, rows: TableFiles, fence: Fence) -> None:
        fence.put(lambda: self._register(rows, fence), (CommitConflictError,))

    def _register(self, rows: TableFiles, fence: Fence) -> None:
        dataset = self._dataset()
        if dataset is not None and fence.is_passed(partial(_commits, dataset)):
            return
        if not rows.files and (not rows.schema if dataset is None else self._append):
            return
        operation: lance.LanceOperation.BaseOperation
        fragments = [FragmentMetadata.from_json(text) for file in rows.files for text in file]
        if dataset is not None and self._append:
            operation = lance.LanceOperation.Append(fragments)
        elif dataset is not None and not fragments:
            operation = lance.LanceOperation.Overwrite(dataset.schema, [])
        else:
            operation = lance.LanceOperation.Overwrite(self.columns(rows), fragments)
        version = 0 if dataset is None else dataset.version
        fence.check()
        lance.LanceDataset.commit(
            self._address.library_uri,
            lance.Transaction(version, operation, transaction_properties=fence.marks),
            storage_options=self._address.storage_options,
            max_retries=0,  # on a conflict, check the marks again; appends do not conflict
        )

    def first_rows(self, count: int) -> list[Row]:
        dataset = self._dataset()
        return [] if dataset is None else list(checked(dataset.to_table(limit=count)).to_pylist())

    def _dataset(self) -> lance.LanceDataset | None:
        if not (self._address / "_versions").files():
            return None
        options = self._address.storage_options
        return lance.dataset(self._address.library_uri, storage_options=options)


def _commits(dataset: lance.LanceDataset, mark: str) -> int:
    transactions = (entry for entry in dataset.get_transactions(dataset.version) if entry)
    found = (entry.transaction_properties or {} for entry in transactions)
    return sum(mark in (properties.get(MARK), properties.get(SERIES)) for properties in found)


def _with_vectors(table: pa.Table) -> pa.Table:
    """Return the table with tensors as lists. Tensors with one dimension of a fixed size become
    lists of fixed size."""
    lists = tensors_to_lists(table)
    fields = [
        field.with_type(pa.list_(field.type.value_type, size)) if size else field
        for field, size in zip(lists.schema, map(_vector_size, table.schema), strict=True)
    ]
    return lists.cast(pa.schema(fields))


def _vector_size(field: pa.Field) -> int:
    shape = getattr(field.type, "shape", None)
    return shape[0] if is_tensor(field.type) and shape and len(shape) == 1 else 0
