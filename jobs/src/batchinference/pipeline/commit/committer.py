"""Commits the rows of a task: data files, an error file, and last the manifest."""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.commit_groups import (
    commit_groups,
    counts_of_group,
    row_ranges_of,
    shares_of,
)
from batchinference.pipeline.commit.manifest import Manifest
from batchinference.pipeline.commit.manifest_entry import Content, DataFile, ManifestEntry
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.storage.location import Location

PUT_THREADS = 8


class RowFiles(Protocol):
    """Encodes rows as files of the output's format."""

    def data(self, table: pa.Table) -> Iterator[tuple[str, str, Content]]:
        """Yield the files of a table: the directory below the output (empty for the output itself),
        the end of the name, and the content."""

    def columns(self, table: pa.Table) -> list[tuple[str, str]]:
        """Return the names and types of the columns in the data files of a table."""

    def errors(self, failed: pa.Table) -> tuple[str, Content]:
        """Return the file of failed rows: the end of the name, and the content."""


@dataclass(frozen=True)
class Committer:
    """Writes and commits the rows of tasks."""

    attempt: Attempt
    files: RowFiles

    def put(self, batch: RowBatch, task: int, number: int = 0) -> None:
        """Write and commit rows as commit `number` of a task.

        Raises BadOutput, and leaves no files, if the output accepts no more commits of this run."""
        entries = [self._entry(group, task) for group in commit_groups(batch)]
        manifest = Manifest(task, number, entries, list(batch.ends), list(batch.notes))
        self._remove_if_late(manifest)
        (self.attempt.place / manifest.new_name()).write(manifest.serialized())

    def _entry(self, group: RowBatch, task: int) -> ManifestEntry:
        return ManifestEntry(
            counts_of_group(group),
            row_ranges_of(group),
            shares_of(group),
            self._put_data(group.table, task) if len(group.ids) else [],
            self.files.columns(group.table),
            self._put_errors(group.errors, task) if group.errors.num_rows else None,
        )

    def _remove_if_late(self, manifest: Manifest) -> None:
        """If the output is closed or taken over, remove the files of this late task and raise
        BadOutput.

        The driver closes the output and then lists its files, so it finds all files that were
        written before. Files that were written later are removed here. So a late task leaves
        orphan files only if its process dies between its writes and this call, and no manifest
        ever names a file that was removed."""
        try:
            self.attempt.check_open()
        except BadOutput:
            layout = self.attempt.layout
            for entry in manifest.entries:
                for file in entry.data:
                    layout.data.inside(file.name).delete()
                if entry.errors:
                    (layout.errors / entry.errors.name).delete()
            raise

    def _put_data(self, table: pa.Table, task: int) -> list[DataFile]:
        name = self._name(task)
        numbers = itertools.count()
        files = (
            (f"{directory}/" * bool(directory) + f"{name}-{next(numbers):04d}{ending}", content)
            for directory, ending, content in self.files.data(table)
        )
        return list(_put_all(self.attempt.layout.data, files))

    def _put_errors(self, failed: pa.Table, task: int) -> DataFile:
        ending, content = self.files.errors(failed)
        return _put(self.attempt.layout.errors, self._name(task) + ending, content)

    def _name(self, task: int) -> str:
        layout, number = self.attempt.layout, self.attempt.number
        return layout.part_name(number, task, uuid.uuid4().hex[:8])


def _put_all(place: Location, files: Iterable[tuple[str, Content]]) -> Iterator[DataFile]:
    """Write files in threads. At most PUT_THREADS encoded files are in memory."""
    waiting: deque[Future[DataFile]] = deque()
    with ThreadPoolExecutor(PUT_THREADS) as pool:
        for name, content in files:
            waiting.append(pool.submit(_put, place, name, content))
            if len(waiting) == PUT_THREADS:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


def _put(place: Location, name: str, content: Content) -> DataFile:
    place.inside(name).write(content)
    return DataFile.of(name, content)
