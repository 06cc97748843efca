"""Commits a batch of rows of a task: writes data files, error files, and finally the manifest."""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.commit_groups import (
    commit_groups,
    counts_of_group,
    origins_of,
    row_ranges_of,
    shares_of,
    warnings_of_group,
)
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.manifest import Content, DataFile, Manifest, ManifestEntry
from batchinference.pipeline.errors import UnwritableValue
from batchinference.pipeline.row_batch import WRITE_STEP, RowBatch
from batchinference.pipeline.step_time import StepTime
from batchinference.pipeline.storage.arrow_files import schema_text
from batchinference.pipeline.storage.location import Location, delete_all

WRITE_THREADS = 8
"""Maximum number of files of a batch that are in memory and written at the same time."""


class RowEncoder(Protocol):
    """Encodes rows as files of the output's format."""

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise JobFailure if rows with these columns cannot be written."""

    def stored_rows(self, batch: RowBatch) -> pa.Table:
        """Return the rows of a batch as data files store them."""

    def encode_data(self, table: pa.Table) -> Iterator[tuple[str, str, Content]]:
        """Yield for each data file of a table: its directory below the output (or empty), the end
        of its name, and the content."""

    def row_indexes(self, table: pa.Table) -> Iterator[np.ndarray]:
        """Yield the indexes (int64) of the rows of each data file in the table."""

    def column_types(self, table: pa.Table) -> list[tuple[str, str]]:
        """Return the names and types of the columns in the data files of a table."""

    def with_warnings(self, batch: RowBatch) -> RowBatch:
        """Return the batch with warnings about values that the output cannot represent."""

    def without_unwritable(self, batch: RowBatch, error: UnwritableValue) -> RowBatch:
        """Return the batch with the rows that cannot be encoded as failed rows. Raises `error`,
        which comes from `encode_data`, if no row is the cause."""

    def encode_errors(self, failed: pa.Table) -> tuple[str, Content]:
        """Return the end of the name and the content of the error file for failed rows."""


@dataclass(frozen=True)
class Committer:
    """Writes and commits the rows of tasks."""

    job_pass: JobPass
    encoder: RowEncoder
    by_file: bool = False
    """Whether manifests record which rows come from which input file (`Origin`)."""
    write_threads: int = WRITE_THREADS

    def put(self, batch: RowBatch, task: int, number: int = 0) -> None:
        """Write and commit a batch as commit `number` of a task. Raises BadOutput if the pass
        accepts no more commits. After an error, the files of the batch are deleted. They remain if
        only the write of the manifest failed, because the manifest may exist nevertheless.

        At the end, the driver closes the pass and deletes orphan files. A task that writes files
        later fails in `check_can_commit`, and then deletes its files. They remain only if its
        process dies or the storage is unavailable."""
        with _deleted_on_error() as written:
            write_time = StepTime(WRITE_STEP)
            with write_time.measure(lambda: len(batch.ids)):
                if self.by_file:
                    batch = batch.in_order_of(np.unique(batch.ids))
                batch = self.encoder.with_warnings(batch)
                entries = list(self._entries(batch, task, written))
            notes = [*batch.notes, *write_time.take_rest()]
            wrote_rows = any(entry.counts.written for entry in entries)
            has_columns = batch.table.num_columns and not wrote_rows
            schema = schema_text(batch.table.schema) if has_columns else ""
            manifest = Manifest(task, number, entries, list(batch.ends), notes, schema)
            content = manifest.serialized()
            self.job_pass.check_can_commit()
        (self.job_pass.directory / manifest.new_name()).write(content)

    def _entries(
        self, batch: RowBatch, task: int, written: list[Location]
    ) -> Iterator[ManifestEntry]:
        """Write a batch, and yield its manifest entries. Unwritable rows become failed rows."""
        for group in commit_groups(batch):
            try:
                with _deleted_on_error() as new_files:
                    entry = self._entry(group, task, new_files)
            except UnwritableValue as error:
                remaining = self.encoder.without_unwritable(group, error)
                yield from self._entries(remaining, task, written)
            else:
                written += new_files
                yield entry

    def _entry(self, group: RowBatch, task: int, written: list[Location]) -> ManifestEntry:
        table = self.encoder.stored_rows(group)
        return ManifestEntry(
            counts_of_group(group),
            row_ranges_of(group),
            shares_of(group),
            self._write_data(table, task, written) if len(group.ids) else [],
            self.encoder.column_types(table),
            self._write_errors(group.errors, task, written) if group.errors.num_rows else None,
            warnings_of_group(group),
            origins_of(group, self.encoder.row_indexes(table)) if self.by_file else [],
        )

    def _write_data(self, table: pa.Table, task: int, written: list[Location]) -> list[DataFile]:
        name = self._name(task)
        numbers = itertools.count()
        files = (
            (f"{directory}/" * bool(directory) + f"{name}-{next(numbers):04d}{ending}", content)
            for directory, ending, content in self.encoder.encode_data(table)
        )
        return list(_write_files(self.job_pass.layout.data, files, written, self.write_threads))

    def _write_errors(self, failed: pa.Table, task: int, written: list[Location]) -> DataFile:
        ending, content = self.encoder.encode_errors(failed)
        return _write_file(self.job_pass.layout.errors, self._name(task) + ending, content, written)

    def _name(self, task: int) -> str:
        layout, number = self.job_pass.layout, self.job_pass.number
        return layout.file_prefix(number, task, uuid.uuid4().hex[:8])


@contextmanager
def _deleted_on_error() -> Iterator[list[Location]]:
    """Yield a list of files, and delete these files after an error if the storage permits. The
    caller must add each file before it writes the file."""
    written: list[Location] = []
    try:
        yield written
    except BaseException:
        with suppress(Exception):  # the first error is the one to report
            delete_all(written)
        raise


def _write_files(
    directory: Location, files: Iterable[tuple[str, Content]], written: list[Location], threads: int
) -> Iterator[DataFile]:
    """Write files in threads, and yield them in order. At most `threads` files are in memory."""
    waiting: deque[Future[DataFile]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for name, content in files:
            waiting.append(pool.submit(_write_file, directory, name, content, written))
            if len(waiting) == threads:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


def _write_file(
    directory: Location, name: str, content: Content, written: list[Location]
) -> DataFile:
    file = directory / name
    written.append(file)  # a failed write may have created the file
    file.write(content)
    return DataFile.of(name, content)
