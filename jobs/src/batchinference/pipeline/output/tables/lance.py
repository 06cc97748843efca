"""Writes Lance datasets: adds the rows or the new columns of a job in one version."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any, cast

import lance
import numpy as np
import pyarrow as pa
from lance.commit import CommitConflictError
from lance.fragment import FragmentMetadata, write_fragments
from lance.schema import LanceSchema

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.table_commit import MARK, SERIES, Fence, TableFiles
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.tables import (
    Table,
    check_columns,
    check_types,
    has_versions,
    name_error,
)
from batchinference.pipeline.output.writers.parquet import (
    ParquetWriter,
    check_stored_types,
    without_empty_structs,
)
from batchinference.pipeline.row_batch import NUMBERS_PER_FILE
from batchinference.pipeline.storage.arrow_files import refuse_pickles, table_in
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.type_widening import cast_column, is_tensor, map_types
from batchinference.spec.write import WriteLance
from batchinference.text import counted

_RESERVED_NAMES = frozenset(
    ["", "_rowid", "_rowaddr", "_rowoffset", "_row_last_updated_at_version",
     "_row_created_at_version"]
)  # fmt: skip
_RESERVED_SIGNS = re.compile("[.`]")
"""Lance writes columns with these signs in their names, or an empty name, but cannot read them."""
StagedFile = tuple[list[Any], list[str], Location]
"""The columns of the dataset at staging, the new fragments (as JSON), and the committed file."""


class LanceTable(Table):
    # Lance refuses to append lists whose elements have another name
    parquet = ParquetWriter("zstd", names_of_lists=True)

    def __init__(self, write: WriteLance) -> None:
        self._write = write
        self._address = Location(write.path, write.storage)
        self._append = write.mode == "append"
        self._number_column, self._columns = write.number_column, write.columns or ()
        self._added: AddedColumns | None = None
        self._known: list[str] = []
        """The columns of the dataset if the job adds columns. New columns must have other names."""

    def load(self) -> None:
        dataset = self.existing()
        if self._number_column and dataset is not None:
            self._known = dataset.schema.names
            self._check_new(self._columns, self._known)
        if dataset is not None and self._append:
            self.types = dataset.schema

    def convert(self, table: pa.Table) -> pa.Table:
        self._check_new(table.column_names, self._known)
        if self.types is not None:
            where = f"write.path: the dataset '{self._address.uri}'"
            check_columns(table.column_names, self.types.names, where)
        check_stored_types(table.schema, "Lance")
        table = without_empty_structs(_with_vectors(table))
        # `from_pyarrow` refuses most dictionaries, although Lance can store them (except UUIDs).
        # So for a dictionary, the type of its values is checked
        stored = [field.with_type(map_types(field.type, _stored)) for field in table.schema]
        check_types(pa.schema(stored), LanceSchema.from_pyarrow, "Lance")
        return table

    def _check_new(self, names: Sequence[str], known: Sequence[str]) -> None:
        """Raise BadOutput if the job adds a column that exists or whose name Lance reserves."""
        for name in names:
            if name in _RESERVED_NAMES or _RESERVED_SIGNS.search(name):
                problem = "it uses the name or a sign of it itself" if name else "it is empty"
                raise name_error("Lance", name, problem)
        if self._number_column and (both := [name for name in names if name in known]):
            raise BadOutput(
                f"write.columns: the dataset '{self._address.uri}' has the column '{both[0]}' "
                "already. Give the new column another name in a step"
            )

    def stage_content(self, file: Location, content: bytes) -> StagedFile | Location:
        if self._number_column:
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
        if not has_versions(self._address / "_versions", ".manifest"):
            return None
        options = self._address.storage_options
        return lance.dataset(self._address.library_uri, storage_options=options)

    def commit_count_in(self, existing: lance.LanceDataset, mark: str) -> int:
        transactions = (entry for entry in existing.get_transactions(existing.version) if entry)
        commits = (entry.transaction_properties or {} for entry in transactions)
        return sum(mark in (properties.get(MARK), properties.get(SERIES)) for properties in commits)

    def head(self, existing: lance.LanceDataset, count: int) -> pa.Table:
        return refuse_pickles(existing.to_table(limit=count))

    def register(self, rows: TableFiles, fence: Fence) -> None:
        fence.retry_conflicts(lambda: self._register(rows, fence), (CommitConflictError,))

    def _register(self, rows: TableFiles, fence: Fence) -> None:
        dataset = self.existing()
        if dataset is not None:
            if fence.has_committed(partial(self.commit_count_in, dataset)):
                return
            self.check_rows(dataset, self._write)
        if not rows.files and (not rows.schema if dataset is None else self._append):
            return
        if self._number_column:
            self._commit(dataset, self._added_columns(dataset, rows), fence)
            return
        if dataset is not None and self._append and fence.has_earlier_passes:
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
        if dataset is None or rows.origin is None or self._number_column is None:
            raise BadOutput(f"write.path: there is no dataset any more ('{self._address.uri}')")
        self._check_new(rows.schema.names, dataset.schema.names)
        if self._added is None:
            version, ids = rows.origin()
            self._added = AddedColumns(version, ids, rows.files, self._number_column, self.convert)
        return self._added.operation(dataset)

    def _reject_late_appends(self, dataset: lance.LanceDataset, fence: Fence) -> lance.LanceDataset:
        """Commit a version with the same rows, and return it. From then on, Lance refuses appends
        to older versions, such as a late append of an earlier pass. Raises CommitConflictError if
        the dataset has changed."""
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
        """Commit an operation, and return the new version of the dataset. `marks` are by default
        those of the fence. Raises CommitConflictError if another writer has committed."""
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
        """Return the files. Fragments refer to columns by number, so new fragments are written if
        the columns of the dataset have changed. Raises BadOutput if rows do not fit the columns."""
        if all(columns == _columns(dataset) for columns, *_ in files):
            return files
        self.load()
        return [cast(StagedFile, self.stage_content(file, file.read())) for *_, file in files]


def _stored(kind: pa.DataType) -> pa.DataType:
    is_stored = pa.types.is_dictionary(kind) and kind.value_type != pa.uuid()
    return kind.value_type if is_stored else kind


def _columns(dataset: lance.LanceDataset | None) -> list[Any]:
    """Return the names and numbers of a dataset's columns and nested fields; empty for None."""
    return [] if dataset is None else list(map(_numbered, dataset.lance_schema.fields()))


def _numbered(field: Any) -> Any:
    return field.name(), field.id(), list(map(_numbered, field.children()))


def _with_vectors(table: pa.Table) -> pa.Table:
    """Return the table with lists in place of tensors, of fixed size if they have one dimension."""
    lists = tensors_to_lists(table)
    fields = [
        field.with_type(pa.list_(field.type.value_type, size)) if size else field
        for field, size in zip(lists.schema, map(_vector_size, table.schema), strict=True)
    ]
    columns = [*map(cast_column, lists.columns, [field.type for field in fields])]
    return pa.table(columns, pa.schema(fields))


def _vector_size(field: pa.Field) -> int:
    shape = getattr(field.type, "shape", None)
    return shape[0] if is_tensor(field.type) and shape and len(shape) == 1 else 0


_ROW_ID, _CHANGED = "_rowid", "_row_last_updated_at_version"
_HARMLESS = (
    *("Append", "BaseOperation", "CreateIndex", "Delete", "Merge", "Project", "Update"),
    "UpdateConfig",
)
"""The operations of Lance that keep row IDs valid. They remove a fragment only after all of its
rows were deleted or updated."""


@dataclass
class AddedColumns:
    """The columns that a job adds to the rows of a dataset. After a conflict with another commit,
    the next try merges only fragments that have changed since the last try."""

    version: int
    """The dataset version that was read."""
    ids: Sequence[np.ndarray]
    """The row IDs of each part of the input."""
    files: Sequence[Location]
    """Parquet files with the new columns."""
    number_column: str
    """The column of these files with the number of the input row."""
    convert: Callable[[pa.Table], pa.Table]
    _merged: dict[str, Any] = field(default_factory=dict)

    def operation(self, dataset: lance.LanceDataset) -> Any:
        """Return the operation that adds the columns to a dataset. Rows that were added or updated
        after `version` get nulls.

        Raises BadOutput if row IDs may have changed, or if a row has several new values."""
        _check_since(dataset, self.version)
        fragments, schema = [], None
        for fragment in dataset.get_fragments():
            name = f"{fragment.metadata.to_json()} {dataset.max_field_id}"
            if name not in self._merged:
                values = self._values(dataset, fragment)
                self._merged[name] = values and fragment.merge(values, _ROW_ID)
            merged, schema = self._merged[name] or (fragment.metadata, schema)
            fragments.append(merged)
        if schema is None:
            raise BadOutput("write.mode: the dataset has none of the rows any more")
        return lance.LanceOperation.Merge(fragments, schema, preserves_nullability=True)

    def _values(self, dataset: lance.LanceDataset, fragment: Any) -> pa.Table | None:
        """Return the new columns for rows of a fragment; None if no row gets new values."""
        columns = dataset.scanner([_ROW_ID, _CHANGED], fragments=[fragment]).to_table()
        unchanged = columns[_CHANGED].to_numpy() <= self.version
        ids, sources, rows = self._origins
        wanted = columns[_ROW_ID].to_numpy()[unchanged]
        at = np.searchsorted(ids, wanted)
        at = at[(at < len(ids)) & (ids[np.minimum(at, len(ids) - 1)] == wanted)]
        parts = [
            self._read(source).take(pa.array(rows[at[sources[at] == source]]))
            for source in np.unique(sources[at]).tolist()
        ]
        return pa.concat_tables(parts) if parts else None

    @cached_property
    def _read(self) -> Callable[[int], pa.Table]:
        """A function that reads the file with an index, and replaces row numbers by row IDs."""

        def read(file: int) -> pa.Table:
            table = table_in(self.files[file])
            ids = pa.array(self._ids(table[self.number_column].to_numpy()), pa.uint64())
            columns = self.convert(table.drop_columns([self.number_column]))
            return columns.append_column(_ROW_ID, ids)

        return lru_cache(maxsize=4)(read)

    @cached_property
    def _origins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The row IDs in ascending order (uint64), the index of each row's file, and the position
        of each row in its file (int64)."""
        name = self.number_column
        numbers = (table_in(file, [name])[name].to_numpy() for file in self.files)
        ids_of_files = list(map(self._ids, numbers))
        ids = np.concatenate(ids_of_files)
        order = np.argsort(ids, kind="stable")
        if (repeated := ids[order][1:] == ids[order][:-1]).any():
            raise BadOutput(
                "write.mode: addColumn needs at most one row for each row that was read, and the "
                f"steps have made {counted(int(repeated.sum()), 'row')} too many. Remove the step "
                "that makes several rows of one"
            )
        counts = list(map(len, ids_of_files))
        sources = np.repeat(np.arange(len(counts)), counts)
        rows = np.concatenate([np.arange(count) for count in counts])
        return ids[order], sources[order], rows[order]

    def _ids(self, numbers: np.ndarray) -> np.ndarray:
        """Return the row IDs (uint64) of the input rows with these numbers (int64)."""
        parts, rows = np.divmod(numbers, NUMBERS_PER_FILE)
        ids = np.zeros(len(numbers), np.uint64)
        for part in np.unique(parts):
            ids[parts == part] = self.ids[part][rows[parts == part]]
        return ids


def _check_since(dataset: lance.LanceDataset, version: int) -> None:
    """Raise BadOutput if row IDs that were read from `version` may now belong to other rows."""
    if version not in {each["version"] for each in dataset.versions()}:
        raise BadOutput(
            f"write.mode: version {version} of the dataset, which the job has read, was removed, "
            "so that it is unknown which rows the new values belong to. Do not clean up versions "
            "while a job runs"
        )
    before, now = _files(dataset.checkout_version(version)), _files(dataset)
    rewritten = any(not before[number] <= now[number] for number in before.keys() & now.keys())
    count = dataset.version - version
    transactions = dataset.get_transactions(count)[:count]
    names = {type(each.operation).__name__ if each else "unknown" for each in transactions}
    harmful = names.difference(_HARMLESS, ["Rewrite"] if dataset.has_stable_row_ids else [])
    if rewritten or (harmful and before.keys() - now.keys()):
        raise BadOutput(
            f"write.mode: the rows of the dataset were moved or replaced since version {version}, "
            f"which the job has read ({', '.join(sorted(names))}), so that its new columns no "
            f"longer fit. Restore version {version} and run the job again. No row is computed again"
        )


def _files(dataset: lance.LanceDataset) -> dict[int, set[tuple[str, tuple[int, ...]]]]:
    """Return the data files of each fragment, as pairs of a path and the fields in the file."""
    return {
        fragment.fragment_id: {(each.path, tuple(each.fields)) for each in fragment.metadata.files}
        for fragment in dataset.get_fragments()
    }
