"""Puts the rows of a finished output in the order of the input (`write.order: input`).

Each file is sorted when it is committed, and has a column with the number of each row. At the end
of the job, entries whose rows are interleaved are merged, and all files get names that sort like
their rows. The numbers stay in the files, so that rows that are retried later find their place.
"""

from __future__ import annotations

import itertools
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest import (
    DataFile,
    ManifestEntry,
    Range,
    total,
    warnings_of,
)
from batchinference.pipeline.commit.row_coverage import RowSet
from batchinference.pipeline.output.file_rewrites import (
    OutputSchema,
    Rewrite,
    fitting_groups,
    may_fail_in_part,
    merged_errors,
    put_rewritten,
)
from batchinference.pipeline.output.writers import RewritingWriter
from batchinference.pipeline.row_batch import ROW_BITS, pack_id, unpack_ids
from batchinference.pipeline.storage.location import base_name

FILE_BYTES = 64 << 20
"""Maximum memory of the rows of a merged file, if its number of rows is not limited."""
MAX_FILE_BYTES = 256 << 20
"""Maximum memory if the number of rows is limited, unless an existing file takes more."""


@dataclass(frozen=True)
class RowOrder:
    """The column of row numbers, the maximum number of rows of a file, and whether small files are
    merged."""

    column: str
    rows_per_file: int | None = None
    merges: bool = True


def ordered_rewrites(
    attempt: Attempt, entries: list[ManifestEntry], writer: RewritingWriter, order: RowOrder
) -> tuple[list[OrderTask], list[ManifestEntry]]:
    """Return the required rewrites, and the other entries. There are no rewrites if the files are
    in order already."""
    written = [entry for entry in entries if entry.data]
    schema = OutputSchema.of(attempt.layout.data, written, writer)
    # an entry without data may hold the filtered part of a row
    kept = [entry for entry in entries if not entry.data and not entry.shares]
    moved = [entry for entry in entries if entry.data or entry.shares]
    groups = sorted(_groups(moved, order), key=_first)
    names = [base_name(file.name) for group in groups for entry in group for file in entry.data]
    merges = any(len(group) > 1 for group in groups)
    if not merges and all(map(schema.fits, written)) and names == sorted(names):
        return [], entries
    tasks = [
        OrderTask(attempt, group, schema, writer, order, number)
        for number, group in enumerate(groups)
    ]
    return tasks, kept


@dataclass(frozen=True)
class OrderTask(Rewrite):
    """Writes the rows of entries to new files, in the order of the input. `number` is the
    position of these files among all files."""

    order: RowOrder
    number: int

    def __call__(self) -> list[ManifestEntry]:
        layout, counter = self.attempt.layout, itertools.count()
        prefix = layout.part_name(self.attempt.number, self.number, uuid.uuid4().hex[:8])
        data = []
        for old, table in self._tables():
            base = base_name(old.name)
            directory, ending = old.name.removesuffix(base), base.partition(".")[2]
            name = f"{directory}{prefix}-{next(counter):06d}.{ending}"
            content = self.writer.write([table])
            data.append(put_rewritten(self.attempt, layout.data, name, content))
        first = next((entry for entry in self.entries if entry.data), self.entries[0])
        columns = self.schema.columns(first)
        if len(self.entries) == 1:
            return [replace(first, data=data, columns=columns)]
        held = RowSet.of(self.entries)
        counts = replace(total(entry.counts for entry in self.entries), read=held.rows)
        errors = merged_errors(self.attempt, self.entries)
        warnings = warnings_of(self.entries)
        return [ManifestEntry(counts, _ranges(held), [], data, columns, errors, warnings)]

    def _tables(self) -> Iterator[tuple[DataFile, pa.Table]]:
        """Yield the rows of each new file, with a file that it replaces. Files are not merged if
        no type can hold all values of a column."""
        read = lru_cache(maxsize=1)(self._table)
        groups: dict[tuple[str, pa.Schema], list[SortedFile]] = defaultdict(list)
        for entry in self.entries:
            for file in entry.data:
                table = read(file)
                numbers = table.column(self.order.column).cast(pa.int64()).to_numpy()
                directory = file.name.removesuffix(base_name(file.name))
                groups[directory, table.schema].append(SortedFile(file, numbers, table.nbytes))
        for files in groups.values():
            if len(files) == 1:
                yield files[0].file, read(files[0].file)
                continue
            for chosen in _chunks(files, self.order.rows_per_file):
                tables = [read(file.file).take(rows) for file, rows, _ in chosen]
                places = np.concatenate([place for _, _, place in chosen])
                yield files[0].file, pa.concat_tables(tables).take(pa.array(np.argsort(places)))


@dataclass(frozen=True)
class SortedFile:
    """A file, the number of each row (int64), and the bytes of its rows in memory."""

    file: DataFile
    numbers: np.ndarray
    nbytes: int


def _chunks(
    files: list[SortedFile], rows_per_file: int | None
) -> Iterator[list[tuple[SortedFile, np.ndarray, np.ndarray]]]:
    """Yield, for each new file, its source files with the indexes of their rows, and the positions
    of these rows in the new file."""
    numbers = np.concatenate([file.numbers for file in files])
    owners = np.repeat(np.arange(len(files)), [len(file.numbers) for file in files])
    indexes = np.concatenate([np.arange(len(file.numbers)) for file in files])
    order = np.argsort(numbers, kind="stable")
    # files may differ much in the memory of a row
    row_bytes = np.array([file.nbytes / max(1, len(file.numbers)) for file in files])
    end = np.cumsum(row_bytes[owners[order]])
    row = np.arange(len(order))
    first = row - row % (rows_per_file or len(order))
    begin = end[first] - row_bytes[owners[order[first]]]
    largest = max(MAX_FILE_BYTES, *(file.nbytes for file in files)) if rows_per_file else FILE_BYTES
    new_file = (np.diff(first) > 0) | (np.diff((end - begin) // largest) > 0)
    for part in np.split(order, np.flatnonzero(new_file) + 1):
        places = np.argsort(owners[part], kind="stable")
        chosen, firsts = np.unique(owners[part[places]], return_index=True)
        yield [
            (files[owner], indexes[part[place]], place)
            for owner, place in zip(chosen, np.split(places, firsts[1:]), strict=True)
        ]


def _groups(entries: list[ManifestEntry], order: RowOrder) -> Iterator[list[ManifestEntry]]:
    """Yield the entries that are written together. Their rows are interleaved, or their files are
    small. Entries that cannot be merged are yielded alone."""
    failed = any(entry.shares and entry.errors for entry in entries)
    others: list[ManifestEntry] = []
    for entry in entries:
        if may_fail_in_part(entry) or (entry.shares and failed):
            yield [entry]
        else:
            others.append(entry)
    clusters = _interleaved(others)
    yield from fitting_groups(clusters) if order.merges else clusters


def _interleaved(entries: list[ManifestEntry]) -> Iterator[list[ManifestEntry]]:
    """Yield groups of entries with interleaved rows, in the order of the input."""
    cluster: list[ManifestEntry] = []
    end = -1
    for entry in sorted(entries, key=lambda entry: _span(entry)[0]):
        first, after = _span(entry)
        if cluster and first >= end:
            yield cluster
            cluster = []
        cluster.append(entry)
        end = max(end, after)
    if cluster:
        yield cluster


def _first(group: list[ManifestEntry]) -> int:
    return min(_span(entry)[0] for entry in group)


def _span(entry: ManifestEntry) -> tuple[int, int]:
    """Return the first id of the rows of an entry, and the id after the last."""
    whole = [(pack_id(file, first), last - first) for file, first, last in entry.row_ranges]
    spans = [*whole, *((pack_id(file, row), 1) for file, row, _ in entry.shares)]
    return min(first for first, _ in spans), max(first + rows for first, rows in spans)


def _ranges(held: RowSet) -> list[Range]:
    files, first = unpack_ids(held.starts)
    after = held.stops - (files << ROW_BITS)
    return list(zip(files.tolist(), first.tolist(), after.tolist(), strict=True))
