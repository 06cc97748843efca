"""Writes Lance datasets: adds the rows, or the new columns, of a job in one version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import lance
import pyarrow as pa
from lance.commit import CommitConflictError
from lance.fragment import FragmentMetadata, write_fragments

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.table_commit import MARK, SERIES, Fence, TableFiles
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.tables import Row, Table, check_columns
from batchinference.pipeline.output.tables.lance_columns import AddedColumns
from batchinference.pipeline.output.writers.parquet import ParquetWriter, without_empty_structs
from batchinference.pipeline.storage.arrow_files import checked
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.type_widening import is_tensor
from batchinference.spec.write import WriteLance

_OWN_NAMES = ("_rowid", "_rowaddr", "_row_last_updated_at_version")
StagedFile = tuple[list[Any], list[str], Location]
"""The columns of the dataset when fragments were made, these fragments as JSON, and the file
with their rows."""


class LanceTable(Table):
    # Lance refuses to append lists whose element name differs
    parquet = ParquetWriter("zstd", names_of_lists=True)

    def __init__(self, write: WriteLance) -> None:
        self._address = Location(write.path, write.storage)
        self._append = write.mode == "append"
        self._number, self._columns = write.number_column, write.columns or ()
        self._added: AddedColumns | None = None
        self._known: list[str] = []
        """The columns of the dataset, if the job adds columns, which must have other names."""

    def load(self) -> None:
        dataset = self.existing()
        if self._number and dataset is not None:
            self._known = dataset.schema.names
            self._check_new(self._columns, self._known)
        if dataset is not None and self._append:
            self.types = dataset.schema

    def convert(self, table: pa.Table) -> pa.Table:
        self._check_new(table.column_names, self._known)
        if self.types is not None:
            where = f"write.path: the dataset '{self._address.uri}'"
            check_columns(table.column_names, self.types.names, where)
        return without_empty_structs(_with_vectors(table))

    def _check_new(self, names: Sequence[str], known: Sequence[str]) -> None:
        """Raise BadOutput if the job adds a column that exists or whose name Lance reserves."""
        own = [name for name in names if name in _OWN_NAMES or "." in name]
        if self._number and own:
            raise BadOutput(
                f"write.columns: Lance has no column with the name '{own[0]}', which it uses "
                "itself. Give the new column another name in a step"
            )
        if self._number and (both := [name for name in names if name in known]):
            raise BadOutput(
                f"write.columns: the dataset '{self._address.uri}' has the column '{both[0]}' "
                "already. Give the new column another name in a step"
            )

    def stage_content(self, file: Location, content: bytes) -> StagedFile | Location:
        if self._number:
            return file
        dataset = self.existing()
        table = self.converted(self.parquet.read(content))  # restores types that Parquet lacks
        mode = "append" if self._append else "overwrite"
        fragments = write_fragments(
            table,
            self._address.library_uri if dataset is None else dataset,
            schema=table.schema,
            mode="create" if dataset is None else mode,
            storage_options=self._address.storage_options,
        )
        return _columns(dataset), [json.dumps(each.to_json()) for each in fragments], file

    def existing(self) -> lance.LanceDataset | None:
        if not (self._address / "_versions").files():
            return None
        options = self._address.storage_options
        return lance.dataset(self._address.library_uri, storage_options=options)

    def commits_in(self, existing: lance.LanceDataset, mark: str) -> int:
        transactions = (entry for entry in existing.get_transactions(existing.version) if entry)
        found = (entry.transaction_properties or {} for entry in transactions)
        return sum(mark in (properties.get(MARK), properties.get(SERIES)) for properties in found)

    def head(self, existing: lance.LanceDataset, count: int) -> list[Row]:
        return list(checked(existing.to_table(limit=count)).to_pylist())

    def register(self, rows: TableFiles, fence: Fence) -> None:
        fence.retry_conflicts(lambda: self._register(rows, fence), (CommitConflictError,))

    def _register(self, rows: TableFiles, fence: Fence) -> None:
        dataset = self.existing()
        if dataset is not None and fence.has_committed(partial(self.commits_in, dataset)):
            return
        if not rows.files and (not rows.schema if dataset is None else self._append):
            return
        if self._number:
            self._commit(dataset, self._added_columns(dataset, rows), fence)
            return
        if dataset is not None and self._append and fence.has_earlier_attempts:
            dataset = self._reject_late_appends(dataset, fence)
        operation: lance.LanceOperation.BaseOperation
        staged = self._with_current_columns(dataset, rows.files) if self._append else rows.files
        texts = (text for _, fragments, _ in staged for text in fragments)
        fragments = list(map(FragmentMetadata.from_json, texts))
        if dataset is not None and self._append:
            operation = lance.LanceOperation.Append(fragments)
        elif dataset is not None and not fragments:
            operation = lance.LanceOperation.Overwrite(dataset.schema, [])
        else:
            operation = lance.LanceOperation.Overwrite(self.columns(rows), fragments)
        self._commit(dataset, operation, fence)

    def _added_columns(self, dataset: lance.LanceDataset | None, rows: TableFiles) -> Any:
        """Return the operation that adds the new columns to the rows that the job has read."""
        if dataset is None or rows.origin is None or self._number is None:
            raise BadOutput(f"write.path: there is no dataset any more ('{self._address.uri}')")
        self._check_new(rows.schema.names, dataset.schema.names)
        if self._added is None:
            version, ids = rows.origin()
            self._added = AddedColumns(version, ids, rows.files, self._number, self.convert)
        return self._added.operation(dataset)

    def _reject_late_appends(self, dataset: lance.LanceDataset, fence: Fence) -> lance.LanceDataset:
        """Commit a version with the same rows, and return it. Lance then refuses appends that are
        based on an older version, such as one of an earlier attempt that has passed its last check.
        Raises CommitConflictError if the dataset has changed."""
        fragments = [each.metadata for each in dataset.get_fragments()]
        same = lance.LanceOperation.Merge(fragments, dataset.lance_schema)
        return self._commit(dataset, same, fence, {})

    def _commit(
        self,
        dataset: lance.LanceDataset | None,
        operation: Any,
        fence: Fence,
        marks: dict[str, str] | None = None,
    ) -> lance.LanceDataset:
        """Commit an operation with `marks`, by default those of the fence, and return the new
        version of the dataset. Raises CommitConflictError if another writer has committed."""
        version = 0 if dataset is None else dataset.version
        marks = fence.marks if marks is None else marks
        fence.check()
        try:
            return lance.LanceDataset.commit(
                self._address.library_uri,
                lance.Transaction(version, operation, transaction_properties=marks),
                storage_options=self._address.storage_options,
                max_retries=0,  # the caller checks the marks before it retries
            )
        except OSError as error:
            if dataset is None and self.existing() is not None:  # created by another writer
                raise CommitConflictError(str(error)) from error
            raise

    def _with_current_columns(
        self, dataset: lance.LanceDataset | None, files: list[StagedFile]
    ) -> list[StagedFile]:
        """Return the files, with new fragments if the columns of the dataset have changed, because
        fragments refer to columns only by number. Raises BadOutput if the rows do not fit the new
        columns."""
        if all(columns == _columns(dataset) for columns, *_ in files):
            return files
        self.load()
        return [cast(StagedFile, self.stage_content(file, file.read())) for *_, file in files]


def _columns(dataset: lance.LanceDataset | None) -> list[Any]:
    """Return the names and numbers of columns and nested fields of a dataset; empty for None."""
    return [] if dataset is None else list(map(_numbered, dataset.lance_schema.fields()))


def _numbered(field: Any) -> Any:
    return field.name(), field.id(), list(map(_numbered, field.children()))


def _with_vectors(table: pa.Table) -> pa.Table:
    """Return the table with lists for tensors. Tensors with one dimension keep a fixed size."""
    lists = tensors_to_lists(table)
    fields = [
        field.with_type(pa.list_(field.type.value_type, size)) if size else field
        for field, size in zip(lists.schema, map(_vector_size, table.schema), strict=True)
    ]
    return lists.cast(pa.schema(fields))


def _vector_size(field: pa.Field) -> int:
    shape = getattr(field.type, "shape", None)
    return shape[0] if is_tensor(field.type) and shape and len(shape) == 1 else 0
