"""Commits the rows of a task: data files, an error file, and last the manifest."""

from __future__ import annotations

import itertools
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest import (
    Content,
    DataFile,
    Manifest,
    ManifestEntry,
    Origin,
    Range,
    Share,
    ranges_of,
)
from batchinference.pipeline.errors import UnwritableValue
from batchinference.pipeline.row_batch import FULL_SHARE, ROW_BITS, WRITE_STEP, RowBatch, unpack_ids
from batchinference.pipeline.step_time import StepTime
from batchinference.pipeline.storage.arrow_files import schema_text
from batchinference.pipeline.storage.location import Location, delete_all
from batchinference.spec.progress import Counts, TokenKind
from batchinference.spec.warnings import WarningCount, WarningName

PUT_THREADS = 8


class RowFiles(Protocol):
    """Encodes rows as files of the output's format."""

    def check(self, columns: Sequence[str]) -> None:
        """Raise JobFailure if rows with these columns cannot be written."""

    def rows(self, batch: RowBatch) -> pa.Table:
        """Return the rows of the data files of a batch."""

    def data(self, table: pa.Table) -> Iterator[tuple[str, str, Content]]:
        """Yield the files of a table: the directory below the output (empty for the output itself),
        the end of the name, and the content."""

    def indexes(self, table: pa.Table) -> Iterator[np.ndarray]:
        """Yield the indexes, in the table, of the rows of each file (int64)."""

    def columns(self, table: pa.Table) -> list[tuple[str, str]]:
        """Return the names and types of the columns in the data files of a table."""

    def with_warnings(self, batch: RowBatch) -> RowBatch:
        """Return the batch with warnings about values that the output cannot hold."""

    def without_unwritable(self, batch: RowBatch, error: UnwritableValue) -> RowBatch:
        """Return the batch with the rows that cannot be encoded as failed rows. `error` is the
        error that `data` raised. It is raised again if no row is its cause."""

    def errors(self, failed: pa.Table) -> tuple[str, Content]:
        """Return the file of failed rows: the end of the name, and the content."""


@dataclass(frozen=True)
class Committer:
    """Writes and commits the rows of tasks."""

    attempt: Attempt
    files: RowFiles
    by_file: bool = False
    """Whether the part of each input file is recorded, so that its rows can be removed."""

    def put(self, batch: RowBatch, task: int, number: int = 0) -> None:
        """Write and commit rows as commit `number` of a task.

        Raises BadOutput if the output accepts no more commits of this run. A failed call removes
        the files that it has written, unless the write of the manifest failed: the manifest may
        exist then, and must not name a removed file.

        The driver closes the output and then lists its files, so it finds all files that were
        written before. Files that a delayed task wrote after that are removed here. So such a task
        leaves orphan files only if its process dies or loses the storage before they are removed.
        """
        with _removed_on_error() as written:
            write_time = StepTime(WRITE_STEP)
            with write_time.measured(lambda: len(batch.ids)):
                if self.by_file:
                    batch = batch.in_order_of(np.unique(batch.ids))
                batch = self.files.with_warnings(batch)
                entries = list(self._entries(batch, task, written))
            notes = [*batch.notes, *write_time.take_rest()]
            known = batch.table.num_columns and not any(entry.counts.written for entry in entries)
            schema = schema_text(batch.table.schema) if known else ""
            manifest = Manifest(task, number, entries, list(batch.ends), notes, schema)
            content = manifest.serialized()
            self.attempt.check_open()
        (self.attempt.place / manifest.new_name()).write(content)

    def _entries(
        self, batch: RowBatch, task: int, written: list[Location]
    ) -> Iterator[ManifestEntry]:
        """Yield the entries of a batch. Rows that cannot be encoded become failed rows."""
        for group in commit_groups(batch):
            try:
                with _removed_on_error() as new_files:
                    entry = self._entry(group, task, new_files)
            except UnwritableValue as error:
                remaining = self.files.without_unwritable(group, error)
                yield from self._entries(remaining, task, written)
            else:
                written += new_files
                yield entry

    def _entry(self, group: RowBatch, task: int, written: list[Location]) -> ManifestEntry:
        table = self.files.rows(group)
        return ManifestEntry(
            counts_of_group(group),
            row_ranges_of(group),
            shares_of(group),
            self._put_data(table, task, written) if len(group.ids) else [],
            self.files.columns(table),
            self._put_errors(group.errors, task, written) if group.errors.num_rows else None,
            warnings_of_group(group),
            origins_of(group, self.files.indexes(table)) if self.by_file else [],
        )

    def _put_data(self, table: pa.Table, task: int, written: list[Location]) -> list[DataFile]:
        name = self._name(task)
        numbers = itertools.count()
        files = (
            (f"{directory}/" * bool(directory) + f"{name}-{next(numbers):04d}{ending}", content)
            for directory, ending, content in self.files.data(table)
        )
        return list(_put_all(self.attempt.layout.data, files, written))

    def _put_errors(self, failed: pa.Table, task: int, written: list[Location]) -> DataFile:
        ending, content = self.files.errors(failed)
        return _put(self.attempt.layout.errors, self._name(task) + ending, content, written)

    def _name(self, task: int) -> str:
        layout, number = self.attempt.layout, self.attempt.number
        return layout.part_name(number, task, uuid.uuid4().hex[:8])


@contextmanager
def _removed_on_error() -> Iterator[list[Location]]:
    """Yield a list to add files to before they are written. On an error, remove these files if the
    storage permits."""
    written: list[Location] = []
    try:
        yield written
    except BaseException:
        with suppress(Exception):  # the first error is the one to report
            delete_all(written)
        raise


def _put_all(
    place: Location, files: Iterable[tuple[str, Content]], written: list[Location]
) -> Iterator[DataFile]:
    """Write files in threads. At most PUT_THREADS encoded files are in memory."""
    waiting: deque[Future[DataFile]] = deque()
    with ThreadPoolExecutor(PUT_THREADS) as pool:
        for name, content in files:
            waiting.append(pool.submit(_put, place, name, content, written))
            if len(waiting) == PUT_THREADS:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


def _put(place: Location, name: str, content: Content, written: list[Location]) -> DataFile:
    file = place / name
    written.append(file)  # a failed write may have created the file
    file.write(content)
    return DataFile.of(name, content)


def commit_groups(batch: RowBatch) -> Iterator[RowBatch]:
    """Yield groups of rows that count together: most of the rows; failed rows of which something
    counts, so that a retry must remove it; and rows of which the batch holds only a part. Filtered
    rows and warnings whose input row is in another batch are counted in the first group."""
    if not (len(batch.source) or len(batch.filtered) or batch.warnings.num_rows):
        return
    partial, counted = _partial(batch), _failed_and_counted(batch)
    kinds = (~partial & ~counted, ~partial & counted, partial)
    groups = [batch.source[kind] for kind in kinds if kind.any()]
    if len(groups) < 2:
        yield batch
        return
    first, *others = map(batch.only, groups)
    filtered = batch.filtered[~np.isin(batch.filtered, batch.source)]
    warned = ~np.isin(batch.warnings.column("id").to_numpy(), batch.source)
    first = replace(first, filtered=np.concatenate([first.filtered, filtered]))
    yield first.with_warnings(batch.warnings.filter(pa.array(warned)))
    yield from others


def counts_of_group(group: RowBatch) -> Counts:
    """Return the number of whole input rows, and of all rows with each outcome."""
    return Counts(
        read=int((~_partial(group)).sum()),
        written=len(group.ids),
        failed=group.errors.num_rows,
        filtered=len(group.filtered),
        warned=sum(warning.count for warning in warnings_of_group(group)),
        **tokens_of_group(group),
    )


def tokens_of_group(group: RowBatch) -> dict[str, int]:
    """Return the sum of each kind of tokens that models have used for the rows of a group, also for
    rows that failed. Empty if they have used none."""
    mask = pa.array(_are_tokens(group))
    if not mask.true_count:
        return {}
    sums = (
        group.warnings.filter(mask)
        .group_by("name", use_threads=False)
        .aggregate([("amount", "sum")])
    )
    found = {row["name"]: row["amount_sum"] for row in sums.to_pylist()}
    return {kind.value: found.get(kind, 0) for kind in TokenKind}


def warnings_of_group(group: RowBatch) -> list[WarningCount]:
    """Return the warnings of a group by step and name, each once for an input row. Rows of which
    nothing is left have an error record instead, except for warnings about their file."""
    return [warning for _, warning in _warnings(group)]


def _warnings(group: RowBatch, *, by_file: bool = False) -> list[tuple[int, WarningCount]]:
    """Return the same warnings, each with the number of the file of its example. With `by_file`,
    those of each file separately."""
    if not group.warnings.num_rows:
        return []
    ids = group.warnings.column("id").to_numpy()
    # other tasks may have written the rest of a partial row
    left = np.concatenate([group.ids, group.filtered, group.source[_partial(group)]])
    failed = np.isin(ids, group.errors.column("id").to_numpy()) & ~np.isin(ids, left)
    table = group.warnings.filter(pa.array((~failed | _about_files(group)) & ~_are_tokens(group)))
    if by_file:
        files = pa.array(table.column("id").to_numpy() >> ROW_BITS)
        table = table.append_column("file", files)
    keys = ["file", "step", "name"] if by_file else ["step", "name"]
    counted = table.group_by(keys, use_threads=False).aggregate(
        [("id", "count_distinct"), ("amount", "sum"), ("id", "min")]
    )
    examples = zip(*unpack_ids(counted.column("id_min").to_numpy()), strict=True)
    return [
        (
            int(file),
            WarningCount.of_rows(
                WarningName.named(row["name"]),
                row["step"],
                row["id_count_distinct"],
                row["amount_sum"] or 0,
                f"{file}:{number}",
            ),
        )
        for row, (file, number) in zip(counted.to_pylist(), examples, strict=True)
    ]


def origins_of(group: RowBatch, data: Iterable[np.ndarray]) -> list[Origin]:
    """Return the part of each input file in a group whose rows are in the order of the input.
    `data` has the indexes of the rows of each data file."""
    failed, warned = (table.column("id").to_numpy() for table in (group.errors, group.warnings))
    counted = {"written": group.ids, "failed": failed, "filtered": group.filtered}
    files = np.unique(np.concatenate([*counted.values(), group.source, warned]) >> ROW_BITS)
    sums = {name: _sums(files, ids) for name, ids in counted.items()} | _token_sums(files, group)
    warnings, rows = defaultdict[int, list[WarningCount]](list), defaultdict[int, list[Any]](list)
    for file, warning in _warnings(group, by_file=True):
        warnings[file].append(warning)
    for number, indexes in enumerate(data):
        found = np.unique(group.ids[indexes] >> ROW_BITS, return_counts=True)
        for file, count in zip(*(values.tolist() for values in found), strict=True):
            rows[file].append((number, count))
    counts = (dict(zip(sums, values, strict=True)) for values in zip(*sums.values(), strict=True))
    return [
        Origin(file, rows[file], _counts(each, warnings[file]), warnings[file])
        for file, each in zip(files.tolist(), counts, strict=True)
    ]


def _counts(sums: Mapping[str, int], warnings: Iterable[WarningCount]) -> Counts:
    return Counts(**sums, warned=sum(warning.count for warning in warnings))


def _sums(files: np.ndarray, ids: np.ndarray, amounts: np.ndarray | None = None) -> list[int]:
    """Return the number of ids of each file, or the sum of their amounts."""
    places = np.searchsorted(files, ids >> ROW_BITS)
    sums: list[int] = np.bincount(places, amounts, len(files)).astype(np.int64).tolist()
    return sums


def _token_sums(files: np.ndarray, group: RowBatch) -> dict[str, list[int]]:
    """Return the sum of each kind of tokens of each file. Empty if there are none."""
    tokens = group.warnings.filter(pa.array(_are_tokens(group)))
    ids, names, amounts = (tokens.column(name).to_numpy() for name in ("id", "name", "amount"))
    kinds = TokenKind if len(ids) else ()
    return {kind.value: _sums(files, ids, amounts * (names == kind.value)) for kind in kinds}


def row_ranges_of(group: RowBatch) -> list[Range]:
    """Return the ranges of the whole input rows."""
    return ranges_of(group.source[~_partial(group)])


def shares_of(group: RowBatch) -> list[Share]:
    """Return the input rows of which the group holds only a part."""
    partial = _partial(group)
    if group.shares is None or not partial.any():
        return []
    files, rows = unpack_ids(group.source[partial])
    shares = group.shares[partial]
    return list(zip(files.tolist(), rows.tolist(), shares.tolist(), strict=True))


def _partial(batch: RowBatch) -> np.ndarray:
    """Return a mask (bool) of the input rows of which the batch holds only a part."""
    if batch.shares is None:
        return np.zeros(len(batch.source), dtype=bool)
    partial: np.ndarray = batch.shares != FULL_SHARE
    return partial


def _failed_and_counted(batch: RowBatch) -> np.ndarray:
    """Return a mask (bool) of the failed input rows of which something counts: other rows that were
    made from them, or warnings about their file."""
    failed = batch.errors.column("id").to_numpy()
    if not len(failed):
        return np.zeros(len(batch.source), dtype=bool)
    warned = batch.warnings.column("id").to_numpy()[_about_files(batch)]
    counted = np.concatenate([batch.ids, batch.filtered, warned])
    both: np.ndarray = np.isin(batch.source, counted) & np.isin(batch.source, failed)
    return both


def _about_files(batch: RowBatch) -> np.ndarray:
    """Return a mask (bool) of the warnings that also count if their row fails."""
    return _have_names(batch, [name.value for name in WarningName if name.about_file])


def _are_tokens(batch: RowBatch) -> np.ndarray:
    """Return a mask (bool) of the warnings that are numbers of tokens."""
    return _have_names(batch, [kind.value for kind in TokenKind])


def _have_names(batch: RowBatch, names: list[str]) -> np.ndarray:
    found: np.ndarray = np.isin(batch.warnings.column("name").to_numpy(), names)
    return found
