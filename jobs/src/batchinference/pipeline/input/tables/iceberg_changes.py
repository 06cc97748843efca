"""Plans which rows of which data files a read of an Iceberg table reads.

The rows of a snapshot are those of its data files without the deleted ones. The changes between two
snapshots are computed commit by commit. A commit that only adds files inserts their rows. A commit
that compacts changes no rows. Any other commit is a difference of two multisets: the rows that it
removes, from files or with deletes, and the rows that it adds. Equal rows in both were only copied.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyiceberg import expressions as iceberg
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import bind
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
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.readers.iceberg_data_file import TableRows
from batchinference.pipeline.input.readers.table_data_file import START_OVER
from batchinference.pipeline.input.tables import INSERT
from batchinference.pipeline.row_hashes import row_hashes
from batchinference.pipeline.storage.arrow_files import open_parquet
from batchinference.spec.expression import parse_expression

Rows: TypeAlias = dict[str, tuple[DataFile, np.ndarray]]
"""Maps the path of a data file to the file, and to which of its rows are meant (bool)."""
Hashes: TypeAlias = Callable[[DataFile, np.ndarray], Iterable[bytes]]
"""Returns the hashes of the chosen rows of a data file."""
_EQUALITY_DELETES = (
    "read.table: the snapshot has files with equality deletes, as Flink writes them, and only "
    "position deletes and deletion vectors are read. Compact the table first (rewrite_data_files)"
)
DELETE_THREADS = 16
"""Files with deletes that are read concurrently."""
DELETE = "delete"
_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Eq: iceberg.EqualTo,
    ast.Gt: iceberg.GreaterThan,
    ast.GtE: iceberg.GreaterThanOrEqual,
    ast.In: iceberg.In,
    ast.Lt: iceberg.LessThan,
    ast.LtE: iceberg.LessThanOrEqual,
}
_EXACT = {
    int: (IntegerType, LongType),
    str: (StringType, DateType, TimestampType, TimestamptzType),
}
"""The types of columns that Iceberg compares with a constant as the filter does."""


@dataclass(frozen=True)
class Change:
    """Rows of a data file that a snapshot has or that it changes: those that are true in `wanted`.
    `kind` is what happened to them. `ordinal` counts the snapshots."""

    file: DataFile
    wanted: np.ndarray
    snapshot: Snapshot
    kind: str = INSERT
    ordinal: int = 0


@dataclass(frozen=True)
class IcebergFiles:
    """The data files of an Iceberg table, as far as they may have rows that match the filter."""

    metadata: TableMetadata
    io: FileIO
    row_filter: BooleanExpression

    def at(self, snapshot: Snapshot) -> list[Change]:
        """Return the rows of a snapshot."""
        live = self._live(self._tasks(snapshot.manifests(self.io)))
        return [Change(*rows, snapshot) for rows in live.values()]

    def changes(self, snapshots: Iterable[Snapshot]) -> Iterator[Change]:
        """Yield the changes that these snapshots have made, in this order."""
        for ordinal, snapshot in enumerate(snapshots):
            operation = snapshot.summary.operation if snapshot.summary else None
            if operation is Operation.REPLACE:
                continue
            appends = operation is Operation.APPEND
            found = self._appended(snapshot) if appends else self._difference(snapshot)
            yield from (replace(change, ordinal=ordinal) for change in found)

    def _appended(self, snapshot: Snapshot) -> Iterator[Change]:
        """Yield the rows of a snapshot that only adds files."""

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
        """Yield the rows that a snapshot removes, and then those that it adds."""
        known = snapshot.parent_snapshot_id
        parent = None if known is None else self.metadata.snapshot_by_id(known)
        if known is not None and parent is None:
            raise expired(known)
        sides = [each.manifests(self.io) if each else [] for each in (parent, snapshot)]
        before, after = self._changed_tasks(*sides)
        old, new = self._live(before), self._live(after)
        removed, added = _without(old, new), _without(new, old)
        if removed and added:
            self._cancel(removed, added, snapshot)
        for rows, kind in ((removed, DELETE), (added, INSERT)):
            for file, wanted in rows.values():
                if wanted.any():
                    yield Change(file, wanted, snapshot, kind)

    def _changed_tasks(
        self, before: Sequence[ManifestFile], after: Sequence[ManifestFile]
    ) -> list[list[FileScanTask]]:
        """Return the files of two snapshots whose rows may differ between them."""
        common = set(before) & set(after)
        deletes = ManifestContent.DELETES
        if any(manifest.content == deletes for manifest in set(before) ^ set(after)):
            common = set()
        sides = (
            self._tasks([one for one in side if one.content == deletes or one not in common])
            for side in (before, after)
        )
        one, other = ({_identity(task): task for task in side} for side in sides)
        return [
            [task for identity, task in side.items() if identity not in unchanged]
            for side, unchanged in ((one, other), (other, one))
        ]

    def _cancel(self, removed: Rows, added: Rows, snapshot: Snapshot) -> None:
        """Leave out the rows that are both removed and added, each as often as it is in both."""
        schema = self.metadata.schema_by_id(snapshot.schema_id or 0) or self.metadata.schema()
        hashes = partial(self._hashes, TableRows(schema, self.metadata.name_mapping()))
        known = {path: list(hashes(*rows)) for path, rows in added.items()}
        copied = _leave_out(removed, hashes, Counter(chain.from_iterable(known.values())))
        _leave_out(added, lambda file, _: known[file.file_path], copied)

    def _hashes(self, rows: TableRows, file: DataFile, wanted: np.ndarray) -> Iterator[bytes]:
        """Yield the hashes of the chosen rows of a data file."""
        first, wanted, constants = 0, wanted.copy(), partition_of(file, self.metadata)
        with self.io.new_input(file.file_path).open() as source:
            opened = open_parquet(source)
            names = list(rows.names(opened.schema_arrow))
            for batch in opened.iter_batches(columns=names):
                chosen = batch.filter(pa.array(wanted[first : first + batch.num_rows]))
                first += batch.num_rows
                table = pa.Table.from_batches([chosen])
                yield from row_hashes(rows.converted(table, constants))

    def _tasks(
        self,
        manifests: Iterable[ManifestFile],
        wanted: Callable[[ManifestEntry], bool] = lambda _: True,
    ) -> list[FileScanTask]:
        """Return the data files of these manifests that may have rows that match the filter."""
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
        """Return which rows of these data files are not deleted."""
        files = list({file for task in tasks for file in task.delete_files})
        with ThreadPoolExecutor(DELETE_THREADS) as pool:
            found = dict(zip(files, pool.map(partial(_read_deletes, self.io), files), strict=True))
        live = {}
        for task in tasks:
            rows, path = _all_rows(task.file), task.file.file_path
            for deletes in filter(None, (found[file].get(path) for file in task.delete_files)):
                rows[deletes.to_numpy()] = False
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

    Raises BadInput if they are not known any more."""
    found: list[Snapshot] = []
    for snapshot in ancestors_of(now, metadata):
        if snapshot.snapshot_id == last:
            return found[::-1]
        found.append(snapshot)
    if found and found[-1].parent_snapshot_id == last:  # it has expired, and none of those after it
        return found[::-1]
    if metadata.snapshot_by_id(last) is None:
        raise expired(last)
    raise BadInput(
        f"read.table: snapshot {last}, up to which the output has the rows, is not an ancestor of "
        f"the latest one: the table was rolled back. {START_OVER}"
    )


def expired(snapshot: int) -> BadInput:
    """Return the error for a snapshot whose changes are needed, and which was removed."""
    return BadInput(
        f"read.table: changes after snapshot {snapshot} have expired (expire_snapshots), and the "
        f"output lacks them. {START_OVER}, and keep snapshots longer than the time between two runs"
    )


def _all_rows(file: DataFile) -> np.ndarray:
    return np.ones(file.record_count, dtype=bool)


def _identity(task: FileScanTask) -> tuple[str, frozenset[str]]:
    return task.file.file_path, frozenset(file.file_path for file in task.delete_files)


def _without(rows: Rows, others: Rows) -> Rows:
    """Return the rows that are not in the others."""
    return {
        path: (file, wanted & ~others[path][1] if path in others else wanted.copy())
        for path, (file, wanted) in rows.items()
    }


def _leave_out(rows: Rows, hashes: Hashes, available: Counter[bytes]) -> Counter[bytes]:
    """Leave out rows with these hashes, each as often as it is available. Return the number of rows
    that were left out, by hash."""
    left_out: Counter[bytes] = Counter()
    for file, wanted in rows.values():
        for row, found in zip(np.flatnonzero(wanted), hashes(file, wanted), strict=True):
            if left_out[found] < available[found]:
                left_out[found] += 1
                wanted[row] = False
    return left_out


def file_filter(text: str | None, schema: Schema) -> BooleanExpression:
    """Return a condition that holds for each row for which the filter holds, and for others."""
    return iceberg.AlwaysTrue() if text is None else _condition(parse_expression(text), schema)


def _condition(tree: ast.expr, schema: Schema) -> BooleanExpression:
    match tree:
        case ast.BoolOp(op=operator, values=values):
            both = iceberg.And if isinstance(operator, ast.And) else iceberg.Or
            return reduce(both, (_condition(value, schema) for value in values))
        case ast.Compare(left=ast.Name(id=name), ops=[operator], comparators=[right]):
            try:
                value = ast.literal_eval(right)
                kinds = {
                    type(one) for one in (value if isinstance(value, list | tuple) else [value])
                }
                column = schema.find_field(name).field_type
                if all(isinstance(column, _EXACT[kind]) for kind in kinds):
                    condition = _COMPARISONS[type(operator)](name, value)
                    bind(schema, condition, case_sensitive=True)
                    return condition  # type: ignore[no-any-return]
            except (KeyError, TypeError, ValueError):  # Iceberg has no such comparison
                pass
    return iceberg.AlwaysTrue()
