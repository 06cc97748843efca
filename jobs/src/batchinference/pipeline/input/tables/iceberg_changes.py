"""Lists the rows of an Iceberg snapshot, and the changes between two snapshots.

Changes are computed commit by commit:
- A commit that only adds files inserts their rows.
- A commit that only compacts files changes no rows.
- Any other commit may remove rows (by removing files or adding delete files) and add rows. A row
  that is both removed and added was only copied to another file, so it is not a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _read_deletes
from pyiceberg.manifest import (
    DataFile,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import FileScanTask, ManifestGroupPlanner
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.transforms import IdentityTransform

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.readers.iceberg_data_file import TableRows
from batchinference.pipeline.input.readers.table_data_file import START_OVER
from batchinference.pipeline.input.tables import INSERT
from batchinference.pipeline.row_hashes import row_hashes
from batchinference.pipeline.storage.arrow_files import open_parquet

Rows: TypeAlias = dict[str, tuple[DataFile, np.ndarray]]
"""By path: a data file, and a mask (bool) of some of its rows."""
Hashes: TypeAlias = Callable[[DataFile, np.ndarray], Iterable[bytes]]
"""Returns the hashes of the rows that a mask selects in a data file."""
_EQUALITY_DELETES = (
    "read.table: the snapshot has files with equality deletes, as Flink writes them, and only "
    "position deletes and deletion vectors are read. Compact the table first (rewrite_data_files)"
)
DELETE_THREADS = 16
"""Maximum number of delete files that are read concurrently."""
DELETE = "delete"


@dataclass(frozen=True)
class Change:
    """The rows of a data file that the mask `wanted` selects. `snapshot` contains these rows, or
    has inserted or deleted them (`kind` is INSERT or DELETE). `ordinal` is the position of the
    snapshot among the snapshots whose changes are read."""

    file: DataFile
    wanted: np.ndarray
    snapshot: Snapshot
    kind: str = INSERT
    ordinal: int = 0


@dataclass(frozen=True)
class IcebergFiles:
    """The data files of an Iceberg table in which rows may match `row_filter`."""

    metadata: TableMetadata
    io: FileIO
    row_filter: BooleanExpression

    def at(self, snapshot: Snapshot) -> list[Change]:
        """Return the rows of a snapshot."""
        live = self._live(self._tasks(snapshot.manifests(self.io)))
        return [Change(*rows, snapshot) for rows in live.values()]

    def changes(self, snapshots: Iterable[Snapshot]) -> Iterator[Change]:
        """Yield the changes of these snapshots, in order. Compaction (REPLACE) changes no rows."""
        for ordinal, snapshot in enumerate(snapshots):
            operation = snapshot.summary.operation if snapshot.summary else None
            if operation is Operation.REPLACE:
                continue
            appends = operation is Operation.APPEND
            changes = self._appended(snapshot) if appends else self._difference(snapshot)
            yield from (replace(change, ordinal=ordinal) for change in changes)

    def _appended(self, snapshot: Snapshot) -> Iterator[Change]:
        """Yield the rows of the files that a snapshot has added."""

        def is_new(entry: ManifestEntry) -> bool:
            added = entry.status == ManifestEntryStatus.ADDED
            return added and entry.snapshot_id == snapshot.snapshot_id

        manifests = [
            manifest
            for manifest in snapshot.manifests(self.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id
        ]
        for task in self._tasks(manifests, is_new):
            yield Change(task.file, _all_rows(task.file), snapshot)

    def _difference(self, snapshot: Snapshot) -> Iterator[Change]:
        """Yield the rows that a snapshot has removed, and then the rows that it has added."""
        parent_id = snapshot.parent_snapshot_id
        parent = None if parent_id is None else self.metadata.snapshot_by_id(parent_id)
        if parent_id is not None and parent is None:
            raise expired_changes(parent_id)
        manifests = [each.manifests(self.io) if each else [] for each in (parent, snapshot)]
        before, after = self._changed_tasks(*manifests)
        old, new = self._live(before), self._live(after)
        removed, added = _without(old, new), _without(new, old)
        if removed and added:
            self._leave_out_copied(removed, added, snapshot)
        for rows, kind in ((removed, DELETE), (added, INSERT)):
            for file, wanted in rows.values():
                if wanted.any():
                    yield Change(file, wanted, snapshot, kind)

    def _changed_tasks(
        self, before: Sequence[ManifestFile], after: Sequence[ManifestFile]
    ) -> list[list[FileScanTask]]:
        """Return two lists: the data files in `before` and in `after`, without unchanged files."""
        common = set(before) & set(after)
        deletes = ManifestContent.DELETES
        if any(manifest.content == deletes for manifest in set(before) ^ set(after)):
            common = set()
        sides = (
            self._tasks([each for each in side if each.content == deletes or each not in common])
            for side in (before, after)
        )
        old, new = ({_identity(task): task for task in side} for side in sides)
        return [
            [task for identity, task in side.items() if identity not in unchanged]
            for side, unchanged in ((old, new), (new, old))
        ]

    def _leave_out_copied(self, removed: Rows, added: Rows, snapshot: Snapshot) -> None:
        """Clear copied rows in the masks of `removed` and `added`. A copied row is both removed and
        added. If a row is removed twice and added once, one removal remains."""
        schema = self.metadata.schema_by_id(snapshot.schema_id or 0) or self.metadata.schema()
        hashes = partial(self._hashes, TableRows(schema, self.metadata.name_mapping()))
        added_hashes = {path: list(hashes(*rows)) for path, rows in added.items()}
        copied = _leave_out(removed, hashes, Counter(chain.from_iterable(added_hashes.values())))
        _leave_out(added, lambda file, _: added_hashes[file.file_path], copied)

    def _hashes(self, rows: TableRows, file: DataFile, wanted: np.ndarray) -> Iterator[bytes]:
        """Yield the hashes of the rows that the mask `wanted` selects in a data file."""
        first, wanted, constants = 0, wanted.copy(), partition_of(file, self.metadata)
        with self.io.new_input(file.file_path).open() as source:
            opened = open_parquet(source)
            names = list(rows.names(opened.schema_arrow))
            for batch in opened.iter_batches(columns=names):
                selected = batch.filter(pa.array(wanted[first : first + batch.num_rows]))
                first += batch.num_rows
                table = pa.Table.from_batches([selected])
                yield from row_hashes(rows.converted(table, constants))

    def _tasks(
        self,
        manifests: Iterable[ManifestFile],
        wanted: Callable[[ManifestEntry], bool] = lambda _: True,
    ) -> list[FileScanTask]:
        """Return the manifests' data files whose rows may match the filter, sorted by path."""
        planner = ManifestGroupPlanner(self.metadata, self.io, self.row_filter)
        try:
            tasks = list(planner.plan_files(manifests, wanted))
        except ValueError as error:
            if "equality deletes" not in str(error):
                raise
            raise BadInput(_EQUALITY_DELETES) from None
        for task in tasks:
            if (kind := task.file.file_format) is not FileFormat.PARQUET:
                raise BadInput(
                    f"read.table: its data file {task.file.file_path} is {kind.value}, and only "
                    "Parquet is read. Rewrite the table with write.format.default=parquet"
                )
        return sorted(tasks, key=lambda task: task.file.file_path)

    def _live(self, tasks: Sequence[FileScanTask]) -> Rows:
        """Return the rows of these data files that are not deleted."""
        files = list({file for task in tasks for file in task.delete_files})
        with ThreadPoolExecutor(DELETE_THREADS) as pool:
            positions = pool.map(partial(_read_deletes, self.io), files)
            deleted = dict(zip(files, positions, strict=True))
        live = {}
        for task in tasks:
            rows, path = _all_rows(task.file), task.file.file_path
            for numbers in filter(None, (deleted[file].get(path) for file in task.delete_files)):
                rows[numbers.to_numpy()] = False
            live[path] = task.file, rows
        return live


def partition_of(file: DataFile, metadata: TableMetadata) -> dict[int, Any]:
    """Return the values of the identity partition columns of a file, by field id."""
    return {
        field.source_id: file.partition[position]
        for position, field in enumerate(metadata.specs()[file.spec_id].fields)
        if isinstance(field.transform, IdentityTransform) and file.partition[position] is not None
    }


def commits_after(metadata: TableMetadata, last: int, now: Snapshot | None) -> list[Snapshot]:
    """Return the snapshots after the snapshot `last`, up to and including `now`, oldest first.
    Raises BadInput if some of these snapshots have expired, or if the table was rolled back."""
    later: list[Snapshot] = []
    for snapshot in ancestors_of(now, metadata):
        if snapshot.snapshot_id == last:
            return later[::-1]
        later.append(snapshot)
    if later and later[-1].parent_snapshot_id == last:  # only `last` itself has expired
        return later[::-1]
    if metadata.snapshot_by_id(last) is None:
        raise expired_changes(last)
    raise BadInput(
        f"read.table: the output has the rows of snapshot {last}, which is not an ancestor of the "
        f"latest snapshot: the table was rolled back. {START_OVER}"
    )


def expired_changes(snapshot: int) -> BadInput:
    """Return the error about changes after `snapshot` that have expired."""
    return BadInput(
        f"read.table: changes after snapshot {snapshot} have expired (expire_snapshots), and the "
        f"output lacks them. {START_OVER}, and keep snapshots longer than the time between two runs"
    )


def _all_rows(file: DataFile) -> np.ndarray:
    return np.ones(file.record_count, dtype=bool)


def _identity(task: FileScanTask) -> tuple[str, frozenset[str]]:
    return task.file.file_path, frozenset(file.file_path for file in task.delete_files)


def _without(rows: Rows, others: Rows) -> Rows:
    """Return `rows` without the rows in `others`. The masks are copies."""
    return {
        path: (file, wanted & ~others[path][1] if path in others else wanted.copy())
        for path, (file, wanted) in rows.items()
    }


def _leave_out(rows: Rows, hashes: Hashes, available: Counter[bytes]) -> Counter[bytes]:
    """For each hash, clear at most `available[hash]` of its rows in the masks of `rows`. Return the
    number of cleared rows by hash."""
    left_out: Counter[bytes] = Counter()
    for file, wanted in rows.values():
        for row, row_hash in zip(np.flatnonzero(wanted), hashes(file, wanted), strict=True):
            if left_out[row_hash] < available[row_hash]:
                left_out[row_hash] += 1
                wanted[row] = False
    return left_out
