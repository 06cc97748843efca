"""Counts the rows of input files, plans read tasks, blocks and rows per output file, and divides
files into read tasks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from batchinference.pipeline.commit.row_coverage import rows_in_all
from batchinference.pipeline.input import JobInput, RowCount
from batchinference.pipeline.input.input_snapshot import InputFile, InputSnapshot
from batchinference.pipeline.input.readers import (
    DivisibleReader,
    FileStats,
    Reader,
    StatsReader,
    blamed,
    schemas_of,
)
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.row_batch import MissingRows, RowRange
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.retry import with_retries

if TYPE_CHECKING:
    from batchinference.spec.read import Read

Found = TypeVar("Found")
TASK_BYTES = 64 << 20
MIN_TASKS, MAX_TASKS = 64, 10_000
MIN_BLOCKS, MIN_BLOCK_ROWS = 64, 16
MIN_COMMITS = 32
"""Minimum number of commits, so that even a small job shows progress."""
MIN_FILES, SMALL_FILE_ROWS = 8, 100
"""If small files are not merged at the end of the job, there are only MIN_FILES commits as long
as a commit has at most SMALL_FILE_ROWS rows."""
FILE_ROWS, FILE_BYTES = 10_000, 64 << 20
"""An output file with this many rows or bytes is large enough."""
FILE_COST = 1 << 16
"""The cost of opening a file, as the number of bytes that could be read in the same time."""
COUNTED_FILES, SAMPLED_FILES = 1000, 8
COUNT_THREADS, STATS_THREADS = 16, 32
"""Files that are inspected concurrently. Pyarrow opens 25 connections to an object store."""


@dataclass(frozen=True)
class Sizing:
    """The planned sizes of a job. `blocks` is the number of blocks requested from the read tasks.

    `rows_per_file` is a lower bound."""

    read_tasks: int
    blocks: int
    rows_per_file: int

    def of_part(self, share: float) -> Sizing:
        """Return the sizing for a part of the input that is the fraction `share` of it."""
        tasks, blocks = (max(1, math.ceil(share * n)) for n in (self.read_tasks, self.blocks))
        return Sizing(tasks, blocks, self.rows_per_file)


def sizing_of(job_input: JobInput, read: Read, count: RowCount | None, *, merged: bool) -> Sizing:
    """Return the sizing for an input. `count` is None if the number of rows is unknown. `merged`
    says whether small output files are merged at the end of the job."""
    files, size = len(job_input), job_input.size
    rows = count.rows if count else size // 100
    tasks = _tasks(files, size, rows, read)
    wanted = min(MIN_BLOCKS, rows // MIN_BLOCK_ROWS)
    blocks = tasks * max(1, math.ceil(wanted / max(1, tasks)))
    if chosen := read.options.override_num_blocks:
        tasks = blocks = chosen
    wanted_rows = rows // MIN_COMMITS
    if not merged:
        wanted_rows = max(wanted_rows, min(rows // MIN_FILES, SMALL_FILE_ROWS))
    rows_per_file = min(wanted_rows, FILE_ROWS, FILE_BYTES // read.row_bytes(size, rows))
    return Sizing(tasks, blocks, max(1, rows_per_file))


def _tasks(files: int, size: int, rows: int, read: Read) -> int:
    """Return the number of read tasks. Fetched rows cost much more than their bytes, so they are
    counted in rows."""
    task_rows = read.TASK_ROWS
    least = files if task_rows is None else max(files, math.ceil(rows / task_rows))
    most = files if task_rows is None else MAX_TASKS
    return min(max(math.ceil(size / TASK_BYTES), min(least, MIN_TASKS)), most, MAX_TASKS)


def counted_files(frozen: InputSnapshot) -> list[InputFile]:
    """Return the files whose rows are counted before the first row is read.

    These are all files if there are few, or if they must be split into more read tasks than files.
    Otherwise, they are a sample, because counting 5,000 files takes several seconds."""
    files = frozen.files()
    split = math.ceil(frozen.size / TASK_BYTES) > len(files)
    return files if split or len(files) <= COUNTED_FILES else sample(files)


def count_rows(frozen: InputSnapshot, reader: Reader, ends: Mapping[int, int]) -> RowCount | None:
    """Return the number of rows: counted if the snapshot has the statistics of all files, else
    estimated from a few files.

    `ends` maps file numbers to numbers of rows, for the files where this is known. The result is
    None if the reader cannot count or estimate the rows of a file."""
    if isinstance(reader, WholeFileReader):
        return RowCount(rows_in_all(len(frozen), ends, 1), estimated=False)
    files = [file for file in frozen.files() if file.number not in ends]
    if reader.rows_exact:
        known = frozen.stats
        counts: dict[int, int | None] = {number: stats.rows for number, stats in known.items()}
    else:
        counts = _inspect(frozen, reader, sample(files), _count, COUNT_THREADS, damaged=1)
    if None in counts.values():
        return None
    exact = {number: rows for number, rows in counts.items() if rows is not None}
    left = [exact[file.number] for file in files if file.number in exact]
    if len(left) == len(files):
        estimated = bool(files) and not reader.rows_exact
        return RowCount(sum(ends.values()) + sum(left), estimated)
    sizes = frozen.file_sizes
    size, sampled = (sum(sizes[file.number] for file in files), sum(sizes[n] for n in exact))
    rows = round(sum(exact.values()) * size / max(1, sampled))
    return RowCount(sum(ends.values()) + rows, estimated=True)


def _inspect(
    frozen: InputSnapshot,
    reader: Reader,
    files: Iterable[InputFile],
    inspect: Callable[[Reader, Location, int], Found],
    threads: int,
    damaged: Found,
) -> dict[int, Found]:
    """Return the result of `inspect` for these files and their sizes, by file number. A damaged
    file becomes a failed row when it is read."""
    sizes = frozen.file_sizes

    def result(file: InputFile) -> tuple[int, Found]:
        try:
            bound, address = reader.for_file(file.constants, file.deleted), frozen.address(file)
            return file.number, with_retries(lambda: inspect(bound, address, sizes[file.number]))
        except Exception as error:  # noqa: BLE001 - see blamed
            blamed(error)
            return file.number, damaged

    with ThreadPoolExecutor(threads) as pool:
        return dict(pool.map(result, files))


def _count(reader: Reader, file: Location, size: int) -> int | None:
    return reader.rows_in(file, size)


def sample(files: list[InputFile], most: int = SAMPLED_FILES) -> list[InputFile]:
    """Return at most `most` files, evenly spread over the list."""
    step = max(1, math.ceil(len(files) / most))
    return files[::step]


def read_stats(
    frozen: InputSnapshot, reader: Reader, files: Iterable[InputFile]
) -> dict[int, FileStats]:
    """Return the statistics of these files, by file number, for a reader that counts exactly. A
    damaged file has one row."""
    return _inspect(frozen, reader, files, _stats, STATS_THREADS, damaged=FileStats(1))


def _stats(reader: Reader, file: Location, size: int) -> FileStats:
    if isinstance(reader, StatsReader):
        return reader.stats(file, size)
    return FileStats(reader.rows_in(file, size) or 0)


def prepare_reader(
    frozen: InputSnapshot, reader: Reader, samples: list[InputFile], changed: list[InputFile]
) -> InputSnapshot:
    """Prepare the reader for the column types of the input. Return the snapshot with the statistics
    of the samples, or, if it has statistics already, of the files that have changed since."""
    if not isinstance(reader, StatsReader):
        addresses = [frozen.address(file) for file in dict.fromkeys([*samples, *changed])]
        with_retries(lambda: reader.prepare(addresses))
        return frozen
    inspect = changed if frozen.stats else samples
    if inspect:
        frozen = frozen.with_stats(frozen.stats | read_stats(frozen, reader, inspect))
    files, known = frozen.files(), frozen.stats
    inspected = ((frozen.address(files[number]).uri, stats) for number, stats in known.items())
    reader.use_schemas(schemas_of(inspected))
    return frozen


def with_row_counts(
    frozen: InputSnapshot, reader: Reader, files: Iterable[InputFile]
) -> InputSnapshot:
    """Return the snapshot with the statistics of these files. Reads only missing statistics."""
    known = frozen.stats
    found = read_stats(frozen, reader, [file for file in files if file.number not in known])
    without_schemas = {number: replace(stats, schema=None) for number, stats in found.items()}
    return frozen.with_stats(known | without_schemas)


def within_gaps(files: list[InputFile], gaps: MissingRows, reader: Reader) -> list[InputFile]:
    """Return the parts of files, or of parts of files, that contain the rows in `gaps`."""
    most = max((file.stop - file.start for file in files if file.stop), default=0)
    parts = (part for file in files for part in _parts_with_gaps(file, gaps[file.number], reader))
    return _joined(parts, most)


def _parts_with_gaps(file: InputFile, gaps: list[RowRange], reader: Reader) -> list[InputFile]:
    """Return the parts of a file, or of a part of a file, that contain the rows in `gaps`."""
    inside = [gap for gap in (_clip_range(file, *gap) for gap in gaps) if gap is not None]
    if isinstance(reader, DivisibleReader) and reader.can_enter(file.path):
        return [replace(file, start=first, stop=after) for first, after in inside]
    if not inside:
        return []
    # this reader starts at the beginning of the file: one pass serves all row ranges
    return [replace(file, start=inside[0][0], stop=inside[-1][1], gaps=tuple(inside))]


def _joined(parts: Iterable[InputFile], most: int) -> list[InputFile]:
    """Return the parts, joined as long as a part has at most `most` rows in gaps: each part with
    gaps is read from the beginning of its file, which costs as much for few rows as for many."""
    joined: list[InputFile] = []
    for part in parts:
        last = joined[-1] if joined else None
        together = last is not None and last.gaps and part.gaps and last.number == part.number
        if last is not None and together and _wanted(last, most) + _wanted(part, most) <= most:
            size, gaps = last.size + part.size, last.gaps + part.gaps
            joined[-1] = replace(last, stop=part.stop, size=size, gaps=gaps)
        else:
            joined.append(part)
    return joined


def _wanted(part: InputFile, most: int) -> int:
    """Return the number of rows in the gaps of a part; `most` if the last one has no known end."""
    return sum(most if after is None else after - first for first, after in part.gaps)


def _clip_range(file: InputFile, first: int, after: int | None) -> RowRange | None:
    """Return the row range `first` to `after`, cut to a part of a file; None if it is empty."""
    first = max(first, file.start)
    ends = [end for end in (after, file.stop) if end is not None]
    after = min(ends, default=None)
    return (first, after) if after is None or first < after else None


def parts_of(files: list[InputFile], stats: Mapping[int, FileStats], parts: int) -> list[InputFile]:
    """Return files split into about `parts` parts with about the same number of rows."""
    counts = [stats[file.number].rows if file.rows is None else file.rows for file in files]
    most = max(1, math.ceil(sum(counts) / parts))
    return [
        part
        for file, count in zip(files, counts, strict=True)
        for part in _split_at(file, count, _starts(stats[file.number].starts, count, most))
    ]


def _starts(allowed: list[int] | None, count: int, most: int) -> list[int]:
    """Return the first row of each part of a file, one part per `most` rows.

    Each start is moved back to the nearest row at which the reader can start directly."""
    wanted = range(0, max(1, count), most)
    if allowed is None:
        return list(wanted)
    return sorted({allowed[bisect_right(allowed, row) - 1] for row in wanted})


def _split_at(file: InputFile, count: int, starts: list[int]) -> list[InputFile]:
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
