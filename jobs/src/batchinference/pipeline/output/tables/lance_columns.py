"""Adds columns to the rows of a Lance dataset, without writing other columns again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.row_batch import NUMBERS_PER_FILE
from batchinference.pipeline.storage.arrow_files import table_in
from batchinference.pipeline.storage.location import Location
from batchinference.text import counted

_ROW_ID, _CHANGED = "_rowid", "_row_last_updated_at_version"
_HARMLESS = (
    *("Append", "BaseOperation", "CreateIndex", "Delete", "Merge", "Project", "Update"),
    "UpdateConfig",
)
"""The operations of Lance that remove a fragment only after all of its rows were deleted or
updated, so that row IDs of other rows stay valid."""


@dataclass
class AddedColumns:
    """The new columns of the rows that a job has read from a dataset. If a commit conflicts with
    another one, the next try uses the merged fragments of the first that have not changed since."""

    version: int
    """The version of the dataset that was read."""
    ids: Sequence[np.ndarray]
    """The row IDs of each part of the input."""
    files: Sequence[Location]
    """Parquet files with the new columns."""
    number: str
    """The column of these files with the number of the input row."""
    convert: Callable[[pa.Table], pa.Table]
    _merged: dict[str, Any] = field(default_factory=dict)

    def operation(self, dataset: lance.LanceDataset) -> Any:
        """Return the operation that adds the columns to a dataset. Rows that were added or updated
        after `version` get nulls.

        Raises BadOutput if row IDs may have changed, so that the row of a value is unknown."""
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
        """Return the new columns of the rows of a fragment; None if none of its rows has any."""
        columns = dataset.scanner([_ROW_ID, _CHANGED], fragments=[fragment]).to_table()
        same = columns[_CHANGED].to_numpy() <= self.version
        ids, sources, rows = self._origins
        wanted = columns[_ROW_ID].to_numpy()[same]
        at = np.searchsorted(ids, wanted)
        at = at[(at < len(ids)) & (ids[np.minimum(at, len(ids) - 1)] == wanted)]
        parts = [
            self._read(source).take(pa.array(rows[at[sources[at] == source]]))
            for source in np.unique(sources[at]).tolist()
        ]
        return pa.concat_tables(parts) if parts else None

    @cached_property
    def _read(self) -> Callable[[int], pa.Table]:
        """Return a function that reads a file (by index), with row IDs in place of row numbers."""

        def read(file: int) -> pa.Table:
            table = table_in(self.files[file])
            ids = pa.array(self._ids(table[self.number].to_numpy()), pa.uint64())
            return self.convert(table.drop_columns([self.number])).append_column(_ROW_ID, ids)

        return lru_cache(maxsize=4)(read)

    @cached_property
    def _origins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The row IDs in ascending order (uint64), and for each, the index of its file and its
        position in the file (int64, int64)."""
        numbers = (table_in(file, [self.number])[self.number].to_numpy() for file in self.files)
        each = list(map(self._ids, numbers))
        ids = np.concatenate(each)
        order = np.argsort(ids, kind="stable")
        if (repeated := ids[order][1:] == ids[order][:-1]).any():
            raise BadOutput(
                "write.mode: addColumn needs at most one row for each row that was read, and the "
                f"steps have made {counted(int(repeated.sum()), 'row')} too many. Remove the step "
                "that makes several rows of one"
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


def _check_since(dataset: lance.LanceDataset, version: int) -> None:
    """Raise BadOutput if row IDs that were read from `version` may now belong to other rows."""
    if version not in {each["version"] for each in dataset.versions()}:
        raise BadOutput(
            f"write.mode: version {version} of the dataset, which the job has read, was removed, "
            "so that it is unknown which rows its values belong to. Clean up no versions while a "
            "job runs"
        )
    before, now = _files(dataset.checkout_version(version)), _files(dataset)
    rewritten = any(not before[number] <= now[number] for number in before.keys() & now.keys())
    count = dataset.version - version
    found = dataset.get_transactions(count)[:count]
    names = {type(each.operation).__name__ if each else "unknown" for each in found}
    harmful = names.difference(_HARMLESS, ["Rewrite"] if dataset.has_stable_row_ids else [])
    if rewritten or (harmful and before.keys() - now.keys()):
        raise BadOutput(
            f"write.mode: the rows of the dataset were moved or replaced since version {version}, "
            f"which the job has read ({', '.join(sorted(names))}), so that its new columns fit no "
            f"more. Restore version {version} and run the job again. It computes no row again"
        )


def _files(dataset: lance.LanceDataset) -> dict[int, set[tuple[str, tuple[int, ...]]]]:
    """Return the data files of each fragment, and the fields that are read from each file."""
    return {
        fragment.fragment_id: {(each.path, tuple(each.fields)) for each in fragment.metadata.files}
        for fragment in dataset.get_fragments()
    }
