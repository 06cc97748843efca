"""Counts the rows of input files, and divides files into read tasks. Chooses the number of read
tasks, of blocks, and of rows per output file."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from batchinference.pipeline.commit.row_coverage import rows_in_all
from batchinference.pipeline.input import JobInput, RowCount
from batchinference.pipeline.input.input_snapshot import InputFile, InputSnapshot
from batchinference.pipeline.input.readers import (
    DivisibleReader,
    FileStats,
    Reader,
    StatsReader,
    error_of_file,
    gaps_within,
    schemas_of,
)
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.row_batch import MissingRows, RowRange
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.retry import with_retries

if TYPE_CHECKING:
    from batchinference.spec.read import Read

Result = TypeVar("Result")
TASK_BYTES = 64 << 20
MIN_TASKS, MAX_TASKS = 64, 10_000
"""Limits for the number of read tasks. There are fewer than MIN_TASKS if there are fewer files."""
MIN_BLOCKS, MIN_BLOCK_ROWS = 64, 16
"""There are at least MIN_BLOCKS blocks if each block then has at least MIN_BLOCK_ROWS rows."""
MIN_COMMITS = 32
"""Minimum number of commits, because progress is shown per commit."""
MIN_FILES, SMALL_FILE_ROWS = 8, 100
"""If small output files are not merged later, MIN_FILES replaces MIN_COMMITS for commits of up to
SMALL_FILE_ROWS rows."""
FILE_ROWS, FILE_BYTES = 10_000, 64 << 20
"""An output file with this many rows or bytes is large enough."""
FILE_COST = 1 << 16
"""The cost of opening a file: as many bytes could be read in the same time."""
COUNTED_FILES, SAMPLED_FILES = 1000, 8
"""Of more than COUNTED_FILES files, usually only SAMPLED_FILES are counted before reading."""
COUNT_THREADS, STATS_THREADS = 16, 32
"""Threads that inspect files. pyarrow opens 25 connections to an object store."""


@dataclass(frozen=True)
class Sizing:
    """The planned sizes of a job. `blocks` is the number of blocks that all read tasks together
    should yield. `rows_per_file` rows are enough for an output file."""

    read_tasks: int
    blocks: int
    rows_per_file: int

    def of_part(self, fraction: float) -> Sizing:
        """Return the sizing for this fraction of the input."""
        tasks, blocks = (max(1, math.ceil(fraction * n)) for n in (self.read_tasks, self.blocks))
        return Sizing(tasks, blocks, self.rows_per_file)


def sizing_of(job_input: JobInput, read: Read, count: RowCount | None, *, merged: bool) -> Sizing:
    """Return the sizing for an input. `count` is None if the number of rows is unknown. `merged`
    tells whether small output files are merged at the end of the job."""
    files, size = len(job_input), job_input.size
    rows = count.rows if count else size // 100
    tasks = _tasks(files, size, rows, read)
    min_blocks = min(MIN_BLOCKS, rows // MIN_BLOCK_ROWS)
    blocks = tasks * max(1, math.ceil(min_blocks / max(1, tasks)))
    if number := read.options.override_num_blocks:
        tasks = blocks = number
    commit_rows = rows // MIN_COMMITS
    if not merged:
        commit_rows = max(commit_rows, min(rows // MIN_FILES, SMALL_FILE_ROWS))
    rows_per_file = min(commit_rows, FILE_ROWS, FILE_BYTES // read.row_bytes(size, rows))
    return Sizing(tasks, blocks, max(1, rows_per_file))


def _tasks(files: int, size: int, rows: int, read: Read) -> int:
    """Return the number of read tasks. It depends on rows if these are fetched from URLs (the
    format has TASK_ROWS). Fetching costs much more than reading the file."""
    task_rows = read.TASK_ROWS
    lower = files if task_rows is None else max(files, math.ceil(rows / task_rows))
    upper = files if task_rows is None else MAX_TASKS
    return min(max(math.ceil(size / TASK_BYTES), min(lower, MIN_TASKS)), upper, MAX_TASKS)


def counted_files(
    snapshot: InputSnapshot, max_files: int = COUNTED_FILES, task_bytes: int = TASK_BYTES
) -> list[InputFile]:
    """Return the files whose rows are counted before the first row is read. These are all files if
    there are at most `max_files`, or if there will be more read tasks than files. Otherwise, these
    are a sample, because counting 5,000 files takes several seconds."""
    files = snapshot.files()
    split = math.ceil(snapshot.size / task_bytes) > len(files)
    return files if split or len(files) <= max_files else sample(files)


def count_rows(snapshot: InputSnapshot, reader: Reader, ends: Mapping[int, int]) -> RowCount | None:
    """Return the number of rows; None if the reader cannot estimate it. The number is exact if each
    file is one row, or the snapshot has statistics of all files. Otherwise, it is estimated from a
    few files. `ends` has the known numbers of rows, by file number."""
    if isinstance(reader, WholeFileReader):
        return RowCount(rows_in_all(len(snapshot), ends, 1), estimated=False)
    files = [file for file in snapshot.files() if file.number not in ends]
    if reader.rows_exact:
        known = snapshot.stats
        counts: dict[int, int | None] = {number: stats.rows for number, stats in known.items()}
    else:
        rows_in = lambda each, *file: each.rows_in(*file)  # noqa: E731
        counts = _inspect(snapshot, reader, sample(files), rows_in, COUNT_THREADS, damaged=1)
    if None in counts.values():
        return None
    exact = {number: rows for number, rows in counts.items() if rows is not None}
    counted = [exact[file.number] for file in files if file.number in exact]
    if len(counted) == len(files):
        estimated = bool(files) and not reader.rows_exact
        return RowCount(sum(ends.values()) + sum(counted), estimated)
    sizes = snapshot.file_sizes
    size, sampled = (sum(sizes[file.number] for file in files), sum(sizes[n] for n in exact))
    rows = round(sum(exact.values()) * size / max(1, sampled))
    return RowCount(sum(ends.values()) + rows, estimated=True)


def _inspect(
    snapshot: InputSnapshot,
    reader: Reader,
    files: Iterable[InputFile],
    inspect: Callable[[Reader, Location, int], Result],
    threads: int,
    damaged: Result,
) -> dict[int, Result]:
    """Return the result of `inspect` (called with reader, address and size) for each file, by
    number. The result for a damaged file, which becomes a failed row, is `damaged`."""
    sizes = snapshot.file_sizes

    def result(file: InputFile) -> tuple[int, Result]:
        try:
            bound, address = reader.for_file(file.constants, file.deleted), snapshot.address(file)
            return file.number, with_retries(lambda: inspect(bound, address, sizes[file.number]))
        except Exception as error:  # noqa: BLE001 - see error_of_file
            error_of_file(error)
            return file.number, damaged

    with ThreadPoolExecutor(threads) as pool:
        return dict(pool.map(result, files))


def sample(files: list[InputFile], count: int = SAMPLED_FILES) -> list[InputFile]:
    """Return at most `count` files, evenly spread over the list."""
    return files[:: max(1, math.ceil(len(files) / count))]


def read_stats(
    snapshot: InputSnapshot, reader: Reader, files: Iterable[InputFile]
) -> dict[int, FileStats]:
    """Return the statistics of these files, by file number. `reader.rows_exact` must be true. A
    damaged file counts as one row."""
    return _inspect(snapshot, reader, files, _stats, STATS_THREADS, damaged=FileStats(1))


def _stats(reader: Reader, file: Location, size: int) -> FileStats:
    if isinstance(reader, StatsReader):
        return reader.stats(file, size)
    return FileStats(reader.rows_in(file, size) or 0)


def prepare_reader(
    snapshot: InputSnapshot, reader: Reader, samples: list[InputFile], changed: list[InputFile]
) -> InputSnapshot:
    """Let the reader find the column types of the input. Return the snapshot. A StatsReader adds
    the statistics of `samples` to it, or of `changed` if the snapshot already has statistics."""
    if not isinstance(reader, StatsReader):
        addresses = [snapshot.address(file) for file in dict.fromkeys([*samples, *changed])]
        with_retries(lambda: reader.prepare(addresses))
        return snapshot
    inspect = changed if snapshot.stats else samples
    if inspect:
        snapshot = snapshot.with_stats(snapshot.stats | read_stats(snapshot, reader, inspect))
    files, known = snapshot.files(), snapshot.stats
    inspected = ((snapshot.address(files[number]).uri, stats) for number, stats in known.items())
    reader.use_schemas(schemas_of(inspected))
    return snapshot


def with_row_counts(
    snapshot: InputSnapshot, reader: Reader, files: Iterable[InputFile]
) -> InputSnapshot:
    """Return the snapshot with the statistics of these files. Only unknown statistics are read."""
    known = snapshot.stats
    new = read_stats(snapshot, reader, [file for file in files if file.number not in known])
    without_schemas = {number: replace(stats, schema=None) for number, stats in new.items()}
    return snapshot.with_stats(known | without_schemas)


def within_gaps(files: list[InputFile], gaps: MissingRows, reader: Reader) -> list[InputFile]:
    """Return the parts of files, or of parts of files, that have rows in `gaps`.

    Parts are joined if the reader must read each part from the beginning of the file. They get at
    most as many rows as the largest of `files`. A gap without end counts as this number of rows."""
    max_rows = max((file.stop - file.start for file in files if file.stop), default=0)
    parts: list[InputFile] = []
    for part in (part for file in files for part in _with_gaps(file, gaps[file.number])):
        last = parts[-1] if parts else None
        can_enter = isinstance(reader, DivisibleReader) and reader.can_enter(part.path)
        if last and last.number == part.number and not can_enter:
            both = last.gaps + part.gaps
            rows = sum(max_rows if after is None else after - first for first, after in both)
            if rows <= max_rows:
                parts[-1] = replace(last, stop=part.stop, size=last.size + part.size, gaps=both)
                continue
        parts.append(part)
    return parts


def _with_gaps(file: InputFile, gaps: list[RowRange]) -> list[InputFile]:
    """Return the part of a file, or of a part of a file, that has rows in `gaps`, if any."""
    inside: list[RowRange] = [
        (max(first, file.start), min((end for end in (after, file.stop) if end), default=None))
        for first, after in gaps_within(gaps, file.start, file.stop)
    ]
    if not inside:
        return []
    return [replace(file, start=inside[0][0], stop=inside[-1][1], gaps=tuple(inside))]


def parts_of(files: list[InputFile], stats: Mapping[int, FileStats], parts: int) -> list[InputFile]:
    """Return these files split into about `parts` parts with about the same number of rows."""
    counts = [stats[file.number].rows if file.rows is None else file.rows for file in files]
    part_rows = max(1, math.ceil(sum(counts) / parts))
    return [
        part
        for file, count in zip(files, counts, strict=True)
        for part in _split_at(file, count, _starts(stats[file.number].starts, count, part_rows))
    ]


def _starts(allowed: list[int] | None, count: int, part_rows: int) -> list[int]:
    """Return the first row of each part of `part_rows` rows in a file of `count` rows. Each start
    is moved back to the nearest `allowed` row, at which the reader can start."""
    wanted = range(0, max(1, count), part_rows)
    if allowed is None:
        return list(wanted)
    return sorted({allowed[bisect_right(allowed, row) - 1] for row in wanted})


def _split_at(file: InputFile, count: int, starts: list[int]) -> list[InputFile]:
    parts = []
    for start, stop in zip_longest(starts, starts[1:]):
        rows = (count if stop is None else stop) - start
        size = file.size * rows // max(1, count)
        parts.append(replace(file, start=start, stop=stop, size=size))
    return parts


def tasks_of(files: list[InputFile], tasks: int) -> list[list[InputFile]]:
    """Return at most `tasks` lists of adjacent files with about the same number of bytes."""
    costs = [file.size + FILE_COST for file in files]
    total = sum(costs)
    lists: list[list[InputFile]] = [[] for _ in range(min(tasks, len(files)))]
    position = 0
    for file, cost in zip(files, costs, strict=True):
        # the lists divide all bytes evenly: a file is in the list that contains its middle byte
        lists[(2 * position + cost) * len(lists) // (2 * total)].append(file)
        position += cost
    return [task for task in lists if task]
