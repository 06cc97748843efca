"""The datasource: the files of a frozen input as rows with ids."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from ray.data import DataContext
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from batchinference.pipeline import rows
from batchinference.pipeline.blocks import concat
from batchinference.pipeline.failures import BadInput, JobFailure
from batchinference.pipeline.inputs import FrozenInput, InputFile
from batchinference.pipeline.readers.base import BadRow, Chunk, DivisibleReader, Reader
from batchinference.pipeline.readers.chunks import after, size_of
from batchinference.pipeline.retries import ATTEMPTS, Patience
from batchinference.pipeline.storage import Address, is_trouble
from batchinference.plan.columns import OWN_PREFIX

READ_STEP = "read"
"""The step that is named in the error of a row which could not be decoded."""
READ_THREADS = 8
"""Files that one task fetches and decodes at a time, where each is one row."""
GROUP_FILES = 32
"""Files that make one table, where each is one row."""


@dataclass(frozen=True)
class FileRows:
    """Turns files into tables of rows with ids. It travels into the read tasks."""

    root: Address
    reader: Reader
    include_paths: bool

    def read(self, files: list[InputFile]) -> Iterator[pa.Table]:
        """All rows of these files, with an END row after each file's last."""
        if not self.reader.row_per_file:
            for file in files:
                yield from self._tables(file)
            return
        with ThreadPoolExecutor(READ_THREADS) as pool:
            for start in range(0, len(files), GROUP_FILES):
                group = files[start : start + GROUP_FILES]
                yield concat([t for tables in pool.map(self._listed, group) for t in tables])

    def _listed(self, file: InputFile) -> list[pa.Table]:
        return list(self._tables(file))

    def _tables(self, file: InputFile) -> Iterator[pa.Table]:
        row = file.start
        for chunk in self._chunks(file):
            table = self._identified(chunk, file, row)
            row += table.num_rows
            if table.num_rows:
                yield table
        if file.stop is None:
            yield rows.end_of_file(file.number, row)

    def _chunks(self, file: InputFile) -> Iterator[Chunk]:
        """What the reader yields; where the file is damaged, its rest is one bad row. After
        trouble of storage that passes, the file is read again from where that came."""
        done = file.start
        patience = Patience(1 if self.reader.row_per_file else ATTEMPTS)
        while True:
            try:
                for chunk in self._rows_from(done, file):
                    done += size_of(chunk)
                    yield chunk
                return
            except OSError as error:
                if not is_trouble(error):
                    yield BadRow(error)
                    return
                _bear(patience, error, self.root.at(file.path))

    def _rows_from(self, row: int, file: InputFile) -> Iterator[Chunk]:
        address = self.root.at(file.path)
        if isinstance(self.reader, DivisibleReader):
            return self.reader.read_part(address, row, file.stop)
        return after(row, self.reader.read(address))

    def _identified(self, chunk: Chunk, file: InputFile, row: int) -> pa.Table:
        if isinstance(chunk, BadRow):
            return rows.failed_row(rows.pack(file.number, row), READ_STEP, chunk.error)
        _check_names(chunk.column_names, file)
        if self.include_paths:
            if "path" in chunk.column_names:
                raise BadInput(
                    f"{file.path} has a column 'path' of its own: set "
                    "read.options.include_paths to false"
                )
            paths = pa.repeat(pa.scalar(self.root.at(file.path).uri), chunk.num_rows)
            chunk = chunk.append_column("path", paths)
        return rows.with_ids(chunk, file.number, row)


def _bear(patience: Patience, error: OSError, address: Address) -> None:
    try:
        patience.bear(error)
    except OSError:
        raise JobFailure(f"{address.uri} cannot be read: {error}") from error


def _check_names(names: list[str], file: InputFile) -> None:
    for name in names:
        if name.startswith(OWN_PREFIX):
            raise BadInput(
                f"{file.path} has a column '{name}': names that begin with {OWN_PREFIX} are "
                "reserved"
            )
        if names.count(name) > 1:
            raise BadInput(f"{file.path} has two columns '{name}'")


class FileSource(Datasource):
    """The input of a job for Ray Data: each task reads neighbouring files."""

    def __init__(self, frozen: FrozenInput, file_rows: FileRows, tasks: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        files = frozen.files()
        if isinstance(file_rows.reader, DivisibleReader) and len(files) < tasks:
            files = parts_of(frozen, file_rows.reader, tasks)
        self._tasks = tasks_of(files, tasks)
        self._file_rows = file_rows

    def get_name(self) -> str:
        return "Files"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        return [
            ReadTask(
                partial(self._file_rows.read, files),
                BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None),
            )
            for files in self._tasks
        ]


def parts_of(frozen: FrozenInput, reader: Reader, parts: int) -> list[InputFile]:
    """Files cut into about so many parts with the same number of rows."""
    counts = [reader.rows_in(frozen.address(file), file.size) or 0 for file in frozen.files()]
    most = max(1, math.ceil(sum(counts) / parts))
    return [
        replace(file, start=start, stop=start + most if start + most < rows else None)
        for file, rows in zip(frozen.files(), counts, strict=True)
        for start in range(0, max(1, rows), most)
    ]


def tasks_of(files: list[InputFile], tasks: int) -> list[list[InputFile]]:
    """Files as at most so many lists of neighbours with about the same number of bytes.

    A file counts as a little more than its bytes, because opening it takes time as well.
    """
    cost = 1 << 16
    total = sum(file.size + cost for file in files)
    lists: list[list[InputFile]] = [[] for _ in range(min(tasks, len(files)))]
    done = 0
    for file in files:
        lists[min(len(lists) - 1, done * len(lists) // total)].append(file)
        done += file.size + cost
    return [chosen for chosen in lists if chosen]
