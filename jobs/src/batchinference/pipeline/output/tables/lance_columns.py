"""Adds columns to the rows of a Lance dataset. No other column is written again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.row_batch import NUMBERS_PER_FILE
from batchinference.pipeline.storage.arrow_files import read_table, read_tables
from batchinference.pipeline.storage.location import Location

_ROW_ID, _CHANGED = "_rowid", "_row_last_updated_at_version"
_HARMLESS = ("Append", "BaseOperation", "CreateIndex", "Delete", "Merge", "Project", "UpdateConfig")
"""Operations after which a row ID names the same row with the same values, or no row."""


@dataclass
class AddedColumns:
    """The new columns of rows of version `version`. `ids` are the row IDs of each part of the
    input, and `files` the rows in Parquet, with their numbers in the column `number`.

    Merged fragments are used again by the next try to commit if they have not changed since."""

    version: int
    ids: Sequence[np.ndarray]
    files: Sequence[Location]
    number: str
    convert: Callable[[pa.Table], pa.Table]
    _merged: dict[str, Any] = field(default_factory=dict)

    def operation(self, dataset: lance.LanceDataset) -> Any:
        """Return the operation that adds the columns to a dataset. Rows that were added or updated
        since the version that was read get nulls.

        Raises BadOutput if it is unknown which row each value belongs to."""
        _check_since(dataset, self.version)
        fragments, schema = [], None
        for fragment in dataset.get_fragments():
            name = f"{fragment.metadata.to_json()} {dataset.schema}"
            if name not in self._merged:
                self._merged[name] = self._merge(dataset, fragment)
            merged, schema = self._merged[name]
            fragments.append(merged)
        return lance.LanceOperation.Merge(fragments, schema, preserves_nullability=True)

    def _merge(self, dataset: lance.LanceDataset, fragment: Any) -> Any:
        columns = dataset.scanner([_ROW_ID, _CHANGED], fragments=[fragment]).to_table()
        same = columns[_CHANGED].to_numpy() <= self.version
        ids, sources, _ = self._origins
        wanted = columns[_ROW_ID].to_numpy()[same]
        at = np.searchsorted(ids, wanted)
        at = at[(at < len(ids)) & (ids[np.minimum(at, len(ids) - 1)] == wanted)]
        parts = [self._rows_of(at[sources[at] == source]) for source in np.unique(sources[at])]
        return fragment.merge(pa.concat_tables([self._read(0).slice(0, 0), *parts]), _ROW_ID)

    def _rows_of(self, at: np.ndarray) -> pa.Table:
        """Return rows of one file, by their positions in `_origins`."""
        _, sources, rows = self._origins
        return self._read(int(sources[at[0]])).take(pa.array(rows[at]))

    @cached_property
    def _read(self) -> Callable[[int], pa.Table]:
        """Return the rows of a file with their row IDs in place of their numbers."""

        def read(file: int) -> pa.Table:
            with self.files[file].open_input_file() as source:
                table = read_table(source)
            ids = pa.array(self._ids(table[self.number].to_numpy()), pa.uint64())
            return self.convert(table.drop_columns([self.number])).append_column(_ROW_ID, ids)

        return lru_cache(maxsize=4)(read)

    @cached_property
    def _origins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The row IDs in ascending order, the file with each row, and its position in the file
        (uint64, int64, int64)."""
        each = [self._ids(np.concatenate([*_numbers(file, self.number)])) for file in self.files]
        ids = np.concatenate(each)
        order = np.argsort(ids, kind="stable")
        if (repeated := ids[order][1:] == ids[order][:-1]).any():
            raise BadOutput(
                f"write.mode: addColumn needs one row for each row that was read, and the steps "
                f"have made several of {repeated.sum()} rows. Leave the step out that does so"
            )
        sources = np.repeat(np.arange(len(each)), [len(one) for one in each])
        rows = np.concatenate([np.arange(len(one)) for one in each])
        return ids[order], sources[order], rows[order]

    def _ids(self, numbers: np.ndarray) -> np.ndarray:
        parts, rows = np.divmod(numbers, NUMBERS_PER_FILE)
        ids = np.zeros(len(numbers), np.uint64)
        for part in np.unique(parts):
            ids[parts == part] = self.ids[part][rows[parts == part]]
        return ids


def _numbers(file: Location, name: str) -> Iterator[np.ndarray]:
    with file.open_input_file() as source:
        yield from (table[name].to_numpy() for table in read_tables(source, [name]))


def _check_since(dataset: lance.LanceDataset, version: int) -> None:
    """Raise BadOutput if row IDs of a version may name other rows or values in a dataset."""
    for transaction in dataset.get_transactions(dataset.version - version):
        operation: Any = transaction.operation if transaction else None
        name = type(operation).__name__
        in_place = name == "Update" and operation.update_mode == "rewrite_columns"
        if not (
            name in _HARMLESS
            or (name == "Update" and not in_place)
            or (name == "Rewrite" and dataset.has_stable_row_ids)
        ):
            raise BadOutput(
                f"write.mode: the rows of the dataset were moved or replaced since version "
                f"{version}, which the job has read ({name}), so that its new columns fit no more. "
                f"Restore version {version} and run the job again. It computes no row again"
            )
