"""Reads files that are one row each as batches of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import numpy as np

from batchinference.pipeline import row_ids
from batchinference.pipeline.error_attribution import is_storage_error
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.input.listing import InputFile
from batchinference.pipeline.input.path_columns import PathColumns
from batchinference.pipeline.input.readers.base import BadRow
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.row_batch import RowBatch, merged
from batchinference.pipeline.storage.location import Location

Item = TypeVar("Item")

FETCH_THREADS = 8
"""Files that a task fetches concurrently while it decodes earlier files on its one CPU."""
GROUP_FILES, GROUP_BYTES = 32, 64 << 20
"""Maximum number of files per table, and the stored or decoded bytes that complete a table."""
Content: TypeAlias = bytes | BadRow


def whole_files(
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
        for group, fetching in prefetch_one(begun):
            fetched = (_decoded(reader, content.result()) for content in fetching)
            for decoded in _parts(zip(group, fetched, strict=True)):
                yield _batch(root, reader, path_columns, decoded)
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
        return reader.fetch(file)
    except (OSError, MemoryError) as error:
        if is_storage_error(error):
            raise JobFailure(f"{file.uri} cannot be read: {error}") from error
        return BadRow(error)


def _decoded(reader: WholeFileReader, content: Content) -> Any | BadRow:
    return content if isinstance(content, BadRow) else reader.decode_or_bad(content)


def _batch(
    root: Location,
    reader: WholeFileReader,
    path_columns: PathColumns,
    decoded: list[tuple[InputFile, Any | BadRow]],
) -> RowBatch:
    batches = [
        RowBatch.unreadable(row_ids.consecutive(file.number, 0, 1), one.error)
        for file, one in decoded
        if isinstance(one, BadRow)
    ]
    good = [(file, one) for file, one in decoded if not isinstance(one, BadRow)]
    if good:
        table = reader.table([one for _, one in good])
        table = path_columns.added_to_each(table, [root.at(file.path).uri for file, _ in good])
        ids = np.array([row_ids.pack(file.number, 0) for file, _ in good], dtype=np.int64)
        batches.append(RowBatch.read(table, ids))
    return merged(batches)


def prefetch_one(pieces: Iterable[Item]) -> Iterator[Item]:
    """Yield each piece after the next one has started.

    The work on a piece starts when the iterable creates it."""
    before: list[Item] = []
    for piece in pieces:
        yield from before
        before = [piece]
    yield from before
