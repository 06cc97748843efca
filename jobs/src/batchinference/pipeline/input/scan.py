"""Reads files as batches of rows. Files that are one row each are fetched ahead, in groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from batchinference.pipeline.error_attribution import is_about_the_file, is_storage_error
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.input.base import batch_of, check_names
from batchinference.pipeline.input.listing import InputFile
from batchinference.pipeline.input.path_columns import PathColumns
from batchinference.pipeline.input.readers.base import (
    BadRow,
    Chunk,
    DivisibleReader,
    Reader,
    after,
    first,
    size_of,
    within,
)
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.row_batch import RowBatch, consecutive_ids, merged, pack_id
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.memory_limit import beside_limits
from batchinference.pipeline.storage.retry import ATTEMPTS, RetryBudget

Item = TypeVar("Item")

FETCH_THREADS = 8
"""Files that a task fetches concurrently while it decodes earlier files on its one CPU."""
GROUP_FILES, GROUP_BYTES = 32, 64 << 20
"""Maximum number of files per table, and the stored or decoded bytes that complete a table."""
Content: TypeAlias = bytes | BadRow


@dataclass(frozen=True)
class FileRows:
    """Reads files into batches of rows. It is pickled and sent to the read tasks."""

    root: Location
    reader: Reader
    path_columns: PathColumns

    def read(self, files: list[InputFile]) -> Iterator[RowBatch]:
        """Yield all rows of these files.

        If files can have several rows, the end of each file follows its last row."""
        if isinstance(self.reader, WholeFileReader):
            yield from _whole_files(self.root, self.reader, self.path_columns, files)
            return
        for file in files:
            yield from self._batches(file)

    def _batches(self, file: InputFile) -> Iterator[RowBatch]:
        row = file.start
        for chunk in self.chunks(file):
            for skipped, wanted in within(chunk, row, file.gaps):
                if size_of(wanted):
                    yield self._batch(wanted, file, row + skipped)
            row += size_of(chunk)
        if file.stop is None:
            yield RowBatch(ends=((file.number, row),))

    def chunks(self, file: InputFile) -> Iterator[Chunk]:
        """Yield the chunks of a file. If the file is damaged, its remaining rows are one BadRow.

        After a transient storage error, reading continues at the row where the error occurred.
        Raises JobFailure if the storage error is not transient or occurs too often."""
        done = file.start
        patience = RetryBudget(ATTEMPTS)
        while True:
            try:
                for chunk in self._rows_from(done, file):
                    done += size_of(chunk)
                    yield chunk
                return
            except Exception as error:
                if is_storage_error(error):
                    _bear(patience, error, self.root.at(file.path))
                    continue
                if not (isinstance(error, OSError) or is_about_the_file(error)):
                    raise
                yield BadRow(error)
                return

    def _rows_from(self, row: int, file: InputFile) -> Iterator[Chunk]:
        address = self.root.at(file.path)
        stop = file.rows if file.stop is None else file.stop
        if isinstance(self.reader, DivisibleReader):
            return self.reader.read_part(address, row, stop)
        chunks = self.reader.read(address)
        return after(row, chunks if stop is None else first(stop, chunks))

    def _batch(self, chunk: Chunk, file: InputFile, row: int) -> RowBatch:
        ids = consecutive_ids(file.number, row, size_of(chunk))
        if isinstance(chunk, BadRow):
            return RowBatch.unreadable(ids, chunk.error)
        uri = self.root.at(file.path).uri
        check_names(chunk.column_names, uri)
        return batch_of(self.path_columns.added_to(chunk, uri), ids)


def _bear(patience: RetryBudget, error: OSError, address: Location) -> None:
    try:
        patience.wait_or_raise(error)
    except OSError:
        raise JobFailure(f"{address.uri} cannot be read: {error}") from error


def _whole_files(
    root: Location, reader: WholeFileReader, path_columns: PathColumns, files: list[InputFile]
) -> Iterator[RowBatch]:
    """Yield the rows of these files, without ends of files, because each file is one row.

    Raises JobFailure if a file cannot be fetched because of a storage error, which is not an error
    of the file itself.
    """
    pool = ThreadPoolExecutor(FETCH_THREADS)
    try:
        begun = (
            (group, [pool.submit(_fetched, reader, root.at(file.path)) for file in group])
            for group in _groups(files)
        )
        for group, fetching in _prefetched(begun):
            fetched = (_decoded(reader, content.result()) for content in fetching)
            for decoded in _parts(zip(group, fetched, strict=True)):
                yield _whole_file_batch(root, reader, path_columns, decoded)
    finally:
        pool.shutdown(cancel_futures=True)  # a task that stops fetches no further files


def _groups(files: list[InputFile]) -> Iterator[list[InputFile]]:
    group: list[InputFile] = []
    for file in files:
        group.append(file)
        if len(group) == GROUP_FILES or sum(one.size for one in group) >= GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _parts(decoded: Iterable[tuple[InputFile, Any]]) -> Iterator[list[tuple[InputFile, Any]]]:
    """Yield the files of a group in smaller groups if they are much larger when decoded."""
    part, size = [], 0
    for file, one in decoded:
        part.append((file, one))
        size += _bytes_of(one)
        if size >= GROUP_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _bytes_of(decoded: Any) -> int:
    values = decoded if isinstance(decoded, tuple) else (decoded,)
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


def _fetched(reader: WholeFileReader, file: Location) -> Content:
    try:
        return beside_limits(lambda: reader.fetch(file))
    except (OSError, MemoryError) as error:
        if is_storage_error(error):
            raise JobFailure(f"{file.uri} cannot be read: {error}") from error
        return BadRow(error)


def _decoded(reader: WholeFileReader, content: Content) -> Any | BadRow:
    return content if isinstance(content, BadRow) else reader.decode_or_bad(content)


def _whole_file_batch(
    root: Location,
    reader: WholeFileReader,
    path_columns: PathColumns,
    decoded: list[tuple[InputFile, Any | BadRow]],
) -> RowBatch:
    batches = [
        RowBatch.unreadable(consecutive_ids(file.number, 0, 1), one.error)
        for file, one in decoded
        if isinstance(one, BadRow)
    ]
    good = [(file, one) for file, one in decoded if not isinstance(one, BadRow)]
    if good:
        table = reader.table([one for _, one in good])
        table = path_columns.added_to_each(table, [root.at(file.path).uri for file, _ in good])
        ids = np.array([pack_id(file.number, 0) for file, _ in good], dtype=np.int64)
        batches.append(batch_of(table, ids))
    return merged(batches)


def _prefetched(pieces: Iterable[Item]) -> Iterator[Item]:
    """Yield each piece after the next one has started.

    The work on a piece starts when the iterable creates it."""
    before: list[Item] = []
    for piece in pieces:
        yield from before
        before = [piece]
    yield from before
