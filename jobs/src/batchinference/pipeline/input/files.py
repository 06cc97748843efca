"""Files as the input of a job."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import partial

import pyarrow.compute as pc

from batchinference.pipeline.input.base import NOTHING, ReadRows
from batchinference.pipeline.input.listing import InputFile, InputSnapshot, snapshot_input
from batchinference.pipeline.input.path_columns import PathColumns
from batchinference.pipeline.input.planning import (
    SAMPLED_FILES,
    RowCount,
    count_rows,
    rows_in,
    sample,
)
from batchinference.pipeline.input.readers import reader_for
from batchinference.pipeline.input.readers.base import DivisibleReader, Reader
from batchinference.pipeline.input.readers.chunks import first, size_of
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.input.scan import FileRows
from batchinference.pipeline.input.snapshot import ProcessedFiles, ResumedInput
from batchinference.pipeline.row_ids import MissingRows, RowRange
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.retry import with_retries
from batchinference.spec.read import FileOptions, ReadFiles

REREAD_BYTES = 4 << 20
"""Small files are divided even if each task has to read them from the beginning."""
FILE_COST = 1 << 16
"""The cost of opening a file, as the number of bytes that could be read in the same time."""


def open_files(
    read: ReadFiles,
    sampled: int = SAMPLED_FILES,
    earlier: ResumedInput | ProcessedFiles | None = None,
) -> FileInput:
    """Return the input for a read configuration: list the files and inspect `sampled` of them.

    Raises BadInput if a path is missing or a file has changed since it was read. Raises NoNewFiles
    if all files were processed before."""
    options: FileOptions = read.options  # type: ignore[attr-defined]
    reader = reader_for(read)  # type: ignore[arg-type]
    extensions = options.file_extensions or list(reader.extensions)
    resumes = isinstance(earlier, ResumedInput)
    ignore = options.ignore_missing_paths or resumes
    frozen = snapshot_input(read.paths, extensions, read.storage, ignore_missing=ignore)
    gone: Set[int] = frozenset()
    if isinstance(earlier, ResumedInput):
        gone = earlier.check(frozen, _rows_each(reader))
        frozen = earlier.frozen
    elif earlier is not None:
        frozen = earlier.without(frozen)
    there = [file for file in frozen.files() if file.number not in gone]
    samples = [frozen.address(file) for file in sample(there, sampled)]
    with_retries(lambda: reader.prepare(samples))
    path_columns = PathColumns.of(options, frozen.uris)
    path_columns.check(reader.columns() or [], frozen.uris[0])
    rows = FileRows(frozen.root, reader, path_columns)
    if options.limit is not None and not resumes:
        frozen = limited(frozen, rows, options.limit)
    return FileInput(frozen, rows, options)


@dataclass(frozen=True)
class FileInput:
    """An input of files, as listed in the input snapshot. Each file is a part."""

    frozen: InputSnapshot
    rows: FileRows
    options: FileOptions
    repeatable: bool = True

    def __len__(self) -> int:
        return len(self.frozen)

    @property
    def size(self) -> int:
        return self.frozen.size

    @property
    def rows_each(self) -> int | None:
        return _rows_each(self.rows.reader)

    def columns(self) -> list[str] | None:
        known = self.rows.reader.columns()
        return None if known is None else [*known, *self.rows.path_columns.names]

    def count(self, ends: Mapping[int, int] = NOTHING) -> RowCount | None:
        if self.frozen.rows is not None:
            return RowCount(self.frozen.rows, estimated=False)
        return with_retries(lambda: count_rows(self.frozen, self.rows.reader, ends))

    def share(self, gaps: MissingRows | None) -> float:
        if gaps is None:
            return 1.0
        costs = [file.size + FILE_COST for file in self.frozen.files()]
        return sum(costs[number] for number in gaps) / sum(costs)

    def serialized(self) -> bytes:
        return self.frozen.serialized()

    def continues(self, before: str) -> bool:
        return True  # a resumed job reads the stored input snapshot, so the ids are the same

    def below(self, place: Location) -> str | None:
        if not place.in_store_of(self.frozen.root):
            return None
        paths = self.frozen.table.column("path")
        inside = paths.filter(pc.starts_with(paths, place.path.rstrip("/") + "/"))
        return str(inside[0]) if len(inside) else None

    def read_tasks(self, tasks: int, gaps: MissingRows | None = None) -> list[ReadRows]:
        """Return the read tasks. Each reads files that are adjacent in the reading order."""
        files = [file for file in self.frozen.files() if gaps is None or file.number in gaps]
        if self.options.shuffle == "files":
            random.Random(self.options.shuffle_seed).shuffle(files)  # noqa: S311 - not for security
        reader = self.rows.reader
        if len(files) < tasks:
            files = self._divided(files, tasks)
        if gaps is not None:
            files = [part for file in files for part in _missing(file, gaps[file.number], reader)]
        return [partial(self.rows.read, chosen) for chosen in tasks_of(files, tasks)]

    def _divided(self, files: list[InputFile], tasks: int) -> list[InputFile]:
        """Return the files, divided into about `tasks` parts if that is cheap."""
        reader = self.rows.reader
        if isinstance(reader, DivisibleReader):
            return parts_of(files, reader, self.rows.root, tasks)
        small = sum(file.size for file in files) <= REREAD_BYTES
        if not small or isinstance(reader, WholeFileReader):
            return files
        counts = [self._counted(file) for file in files]
        most = max(1, math.ceil(sum(counts) / tasks))
        return [
            part
            for file, count in zip(files, counts, strict=True)
            for part in _cut(file, count, list(range(0, max(1, count), most)))
        ]

    def _counted(self, file: InputFile) -> int:
        """Return the number of rows of a file, which is read for this."""
        return sum(size_of(chunk) for chunk in self.rows.chunks(file))


def _rows_each(reader: Reader) -> int | None:
    return 1 if isinstance(reader, WholeFileReader) else None


def _missing(file: InputFile, gaps: list[RowRange], reader: Reader) -> list[InputFile]:
    """Return the parts of a file, or of a part of a file, that contain the rows in `gaps`."""
    inside = [gap for gap in (_within(file, *gap) for gap in gaps) if gap is not None]
    if isinstance(reader, DivisibleReader):
        return [replace(file, start=first, stop=after) for first, after in inside]
    if not inside:
        return []
    # this reader starts at the beginning of the file: one pass serves all row ranges
    return [replace(file, start=inside[0][0], stop=inside[-1][1], gaps=tuple(inside))]


def _within(file: InputFile, first: int, after: int | None) -> RowRange | None:
    """Return the row range `first` to `after`, cut to a part of a file; None if it is empty."""
    first = max(first, file.start)
    ends = [end for end in (after, file.stop) if end is not None]
    after = min(ends, default=None)
    return (first, after) if after is None or first < after else None


def limited(frozen: InputSnapshot, rows: FileRows, most: int) -> InputSnapshot:
    """Return the input snapshot limited to the first `most` rows.

    Files are read to count their rows, unless the reader counts rows exactly without that."""
    left, counts, size = most, [], 0
    for file in frozen.files():
        there = _rows_up_to(left, file, rows)
        counts.append(min(left, there))
        size = round(file.size * counts[-1] / max(1, there))
        left -= counts[-1]
        if left == 0:
            break
    return frozen.limited(counts, size)


def _rows_up_to(most: int, file: InputFile, rows: FileRows) -> int:
    """Return the rows of a file. The result exceeds `most` only if the reader counts exactly."""
    if rows.reader.rows_exact:
        return _counted(rows.reader, file, rows.root)
    return sum(size_of(chunk) for chunk in first(most, rows.chunks(file)))


def _counted(reader: Reader, file: InputFile, root: Location) -> int:
    address = root.at(file.path)
    return with_retries(lambda: rows_in(reader, address, file.size)) or 0


def parts_of(
    files: list[InputFile], reader: DivisibleReader, root: Location, parts: int
) -> list[InputFile]:
    """Return files split into about `parts` parts with about the same number of rows."""
    counts = [_counted(reader, file, root) if file.rows is None else file.rows for file in files]
    most = max(1, math.ceil(sum(counts) / parts))
    return [
        part
        for file, count in zip(files, counts, strict=True)
        for part in _cut(file, count, _starts(reader, root.at(file.path), count, most))
    ]


def _starts(reader: DivisibleReader, file: Location, count: int, most: int) -> list[int]:
    """Return the first row of each part of a file: every `most` rows.

    Each is moved back to the nearest row at which the reader can start without extra reading."""
    wanted = range(0, max(1, count), most)
    allowed = with_retries(lambda: reader.starts(file)) if len(wanted) > 1 else None
    if allowed is None:
        return list(wanted)
    return sorted({allowed[bisect_right(allowed, row) - 1] for row in wanted})


def _cut(file: InputFile, count: int, starts: list[int]) -> list[InputFile]:
    stops: list[int | None] = [*starts[1:], None]
    return [
        replace(
            file,
            start=start,
            stop=stop,
            size=file.size * ((count if stop is None else stop) - start) // max(1, count),
        )
        for start, stop in zip(starts, stops, strict=True)
    ]


def tasks_of(files: list[InputFile], tasks: int) -> list[list[InputFile]]:
    """Return at most `tasks` lists of adjacent files with about the same number of bytes."""
    costs = [file.size + FILE_COST for file in files]
    total = sum(costs)
    lists: list[list[InputFile]] = [[] for _ in range(min(tasks, len(files)))]
    done = 0
    for file, cost in zip(files, costs, strict=True):
        # a file belongs to the list in whose byte range its middle is
        lists[(2 * done + cost) * len(lists) // (2 * total)].append(file)
        done += cost
    return [chosen for chosen in lists if chosen]
