"""How a job is cut: read tasks, blocks, and rows of an output file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from batchinference.pipeline.input.listing import InputFile, InputSnapshot
from batchinference.pipeline.input.readers.base import Reader
from batchinference.pipeline.input.readers.inspection import blamed
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import PictureOptions, Read, ReadImages, ReadManifest, ReadVideo

TASK_BYTES = 64 << 20
MIN_TASKS, MAX_TASKS = 64, 10_000
MIN_BLOCKS, MIN_BLOCK_ROWS = 64, 16
MIN_COMMITS = 32
"""Commits that even a small job makes, so that its progress can be seen."""
FILE_ROWS, FILE_BYTES = 10_000, 64 << 20
"""Rows and bytes of an output file that are enough."""
COUNTED_FILES, SAMPLED_FILES = 1000, 8
FETCHED_ROWS, GROUP_ROWS = 256, 1000
"""Rows of a manifest, and of parquet files, that make a read task: their files can be cut."""
USUAL_PICTURE, USUAL_FRAME, USUAL_OBJECT = (512, 512), (720, 1280), 1 << 18
"""What is taken for granted where nothing tells the size: height and width, bytes."""
INFLATION = {"audio": 10, "webdataset": 10}
"""How much larger rows are in memory than in files that are compressed well."""
COUNT_THREADS = 16


@dataclass(frozen=True)
class RowCount:
    """Rows of the input, and whether that is an estimate."""

    rows: int
    estimated: bool


@dataclass(frozen=True)
class Sizing:
    """`blocks` counts what reading is asked to yield; `rows_per_file` is a lower bound."""

    read_tasks: int
    blocks: int
    rows_per_file: int

    def of_part(self, share: float) -> Sizing:
        """The cut of a part of the input, so large compared to all of it."""
        tasks, blocks = (max(1, math.ceil(share * n)) for n in (self.read_tasks, self.blocks))
        return Sizing(tasks, blocks, self.rows_per_file)


class Measured(Protocol):
    """An input of some parts and bytes."""

    def __len__(self) -> int: ...

    @property
    def size(self) -> int: ...


def sizing_of(given: Measured, read: Read, count: RowCount | None) -> Sizing:
    """The cut of an input; `count` is None when nothing is known of its rows."""
    files, size = len(given), given.size
    rows = count.rows if count else size // 100
    tasks = _tasks(files, size, rows, read)
    wanted = min(MIN_BLOCKS, rows // MIN_BLOCK_ROWS)
    blocks = tasks * max(1, math.ceil(wanted / max(1, tasks)))
    if chosen := read.options.override_num_blocks:
        tasks = blocks = chosen
    rows_per_file = min(rows // MIN_COMMITS, FILE_ROWS, FILE_BYTES // row_bytes(size, rows, read))
    return Sizing(tasks, blocks, max(1, rows_per_file))


def _tasks(files: int, size: int, rows: int, read: Read) -> int:
    """Read tasks. Rows of a manifest cost much more than their bytes."""
    cheap = {"manifest": FETCHED_ROWS, "parquet": GROUP_ROWS}.get(read.format)
    least = files if cheap is None else max(files, math.ceil(rows / cheap))
    most = files if cheap is None else MAX_TASKS
    return min(max(math.ceil(size / TASK_BYTES), min(least, MIN_TASKS)), most, MAX_TASKS)


def row_bytes(size: int, rows: int, read: Read) -> int:
    """About how many bytes a row takes in memory."""
    if isinstance(read, ReadImages):
        return _picture_bytes(read.options)
    if isinstance(read, ReadManifest):
        return _picture_bytes(read.options) if read.options.decode == "image" else USUAL_OBJECT
    if isinstance(read, ReadVideo):
        return math.prod(read.options.size or USUAL_FRAME) * 3
    return max(64, INFLATION.get(read.format, 4) * size // max(1, rows))


def _picture_bytes(options: PictureOptions) -> int:
    return math.prod(options.size or USUAL_PICTURE) * len(options.mode)


def count_rows(frozen: InputSnapshot, reader: Reader, ends: Mapping[int, int]) -> RowCount | None:
    """Rows of the input: counted where that is cheap, else estimated from a few files. `ends` are
    the rows of files where that is known."""
    if isinstance(reader, WholeFileReader):
        return RowCount(len(frozen), estimated=False)
    files = [file for file in frozen.files() if file.number not in ends]
    known = sum(ends.values())
    chosen = files if reader.rows_exact and len(files) <= COUNTED_FILES else sample(files)
    with ThreadPoolExecutor(COUNT_THREADS) as pool:
        counts = list(pool.map(lambda f: rows_in(reader, frozen.address(f), f.size), chosen))
    if None in counts:
        return None
    rows = sum(count for count in counts if count is not None)
    if len(chosen) == len(files):
        return RowCount(known + rows, estimated=bool(files) and not reader.rows_exact)
    size, sampled = (sum(file.size for file in some) for some in (files, chosen))
    return RowCount(known + round(rows * size / max(1, sampled)), estimated=True)


def rows_in(reader: Reader, file: Location, size: int) -> int | None:
    """Rows of a file, as far as that is known; one of a file that is damaged."""
    try:
        return reader.rows_in(file, size)
    except Exception as error:  # noqa: BLE001 - see blamed
        blamed(error)
        return 1  # it becomes a bad row when it is read


def sample(files: list[InputFile], most: int = SAMPLED_FILES) -> list[InputFile]:
    """A few files, spread evenly over the list."""
    step = max(1, math.ceil(len(files) / most))
    return files[::step]
