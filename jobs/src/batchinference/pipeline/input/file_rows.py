"""Reads the rows of files as batches, with retries and prefetching; `readers` has the formats."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
from pyarrow import fs as pafs

from batchinference.pipeline.column_names import check_names
from batchinference.pipeline.error_classification import (
    is_about_the_file,
    is_storage_error,
    is_transient,
)
from batchinference.pipeline.errors import BadInput, JobFailure
from batchinference.pipeline.input import ReadNote, batch_of
from batchinference.pipeline.input.changed_files import START_OVER_HINT
from batchinference.pipeline.input.input_snapshot import InputFile, Version, describe_change
from batchinference.pipeline.input.path_columns import PathColumns
from batchinference.pipeline.input.prefetch import Prefetch
from batchinference.pipeline.input.readers import (
    FILTERED,
    BadRow,
    Chunk,
    DivisibleReader,
    Reader,
    check_end,
    converted,
    grouped,
    parts_in_gaps,
    size_of,
    skip_rows,
    split_kept,
    take_rows,
    with_notes,
)
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.row_batch import READ_STEP, RowBatch, consecutive_ids, merged, pack_id
from batchinference.pipeline.row_warnings import (
    RowWarning,
    collect_warnings,
    split_warnings,
    warning_table,
)
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.retry import ATTEMPTS, STORAGE

Item = TypeVar("Item")

LOCAL_THREADS, REMOTE_THREADS = 1, 8
"""Initial number of threads that fetch files, from a local directory and from an object store."""
GROUP_FILES, GROUP_BYTES = 32, 64 << 20
"""Limits for a table of files that are one row each: the number of files, and their bytes."""
STORE_TIME_NS = 1_000_000_000
"""Tolerance for times of objects. Outside of listings, some stores report only full seconds."""


@dataclass(frozen=True)
class FileRows:
    """Reads files into batches of rows. It is pickled and sent to the read tasks."""

    root: Location
    reader: Reader
    path_columns: PathColumns
    failing: Collection[str] = ()
    """The names of the warnings that make a row a failed row."""
    note: ReadNote = nullcontext
    fails_on_change: bool = True
    """Whether a file that has changed since it was listed ends the job (`read.onChange`)."""
    group_bytes: int = GROUP_BYTES

    def read(self, files: list[InputFile]) -> Iterator[RowBatch]:
        """Yield the rows of these files. If a file can have several rows and is read to its end,
        its last batch has its row count. With `fails_on_change`, raises BadInput if a file has
        changed since it was listed: rows of both versions would have the same ids."""
        if isinstance(self.reader, WholeFileReader):
            yield from self._whole_files(self.reader, files)
            return
        for file in files:
            yield from self._batches(file)

    def _batches(self, file: InputFile) -> Iterator[RowBatch]:
        row, last = file.start, None
        for chunk in self.chunks(file):
            for skipped, wanted in parts_in_gaps(chunk, row, file.gaps):
                if size_of(wanted) or row == file.start:  # an empty table states the columns
                    yield from self._batches_of(wanted, file, row + skipped)
            row, last = row + size_of(chunk), chunk
        if self.fails_on_change:
            self._check_version(file)
        if file.stop is None:
            known = file.gaps[-1][0] if file.gaps else 0  # earlier reads reached the last gap
            check_end(self.root.at(file.path).uri, row, known, last)
            yield RowBatch(ends=((file.number, row),))

    def _check_version(self, file: InputFile) -> None:
        """Raise BadInput if a file has changed since it was listed. Raise JobFailure if the storage
        does not answer, because no row can fail: all rows are already read."""
        address = self.root.at(file.path)
        try:
            _check_unchanged(address, file)
        except OSError as error:
            raise _unreadable(address, error) from error

    def chunks(self, file: InputFile) -> Iterator[Chunk]:
        """Yield the chunks of a file. If the file is damaged, a BadRow stands for its remaining
        rows. After a transient storage error, reading continues at the row of the error. Raises
        JobFailure for other storage errors, and if ATTEMPTS attempts fail at the same row."""
        done, failures = file.start, 0
        while True:
            try:
                chunks = self._rows_from(done, file)
                for chunk in with_notes(chunks, pack_id(file.number, done), self.note):
                    done += size_of(chunk)
                    if size_of(chunk):
                        failures = 0
                    yield chunk
                return
            except Exception as error:
                if is_storage_error(error):
                    failures += 1
                    if failures == ATTEMPTS or not is_transient(error):
                        raise _unreadable(self.root.at(file.path), error) from error
                    time.sleep(STORAGE.backoff(failures))
                    continue
                if not (isinstance(error, OSError) or is_about_the_file(error)):
                    raise
                yield BadRow(error)
                return

    def _rows_from(self, row: int, file: InputFile) -> Iterator[Chunk]:
        address = self.root.at(file.path)
        stop = file.rows if file.stop is None else file.stop
        reader = self.reader.for_file(file.constants, file.deleted)
        if isinstance(reader, DivisibleReader):
            return reader.read_part(address, row, stop, file.gaps)
        chunks = reader.read(address)
        return skip_rows(row, chunks if stop is None else take_rows(stop, chunks), address.uri)

    def _batches_of(self, chunk: Chunk, file: InputFile, row: int) -> Iterator[RowBatch]:
        """Yield the rows of a chunk as batches. `row` is the number of its first row."""
        parts: Iterator[Chunk] = iter([chunk])
        uri = self.root.at(file.path).uri
        keys = self.path_columns.types.keys()
        if not isinstance(chunk, BadRow) and not keys.isdisjoint(chunk.column_names):
            parts = converted(chunk, lambda rows: self.path_columns.without_keys(rows, uri))
        for part in parts:
            yield self._batch(part, file, row)
            row += size_of(part)

    def _batch(self, chunk: Chunk, file: InputFile, row: int) -> RowBatch:
        ids = consecutive_ids(file.number, row, size_of(chunk))
        if isinstance(chunk, BadRow):
            if chunk.error is FILTERED:
                return RowBatch(input_ids=ids, filtered=ids)
            batch = RowBatch.unreadable(ids, chunk.error)
            return batch.with_warnings(warning_table(READ_STEP, ids, chunk.warnings))
        uri = self.root.at(file.path).uri
        table, warnings = split_warnings(chunk)
        table, matches = split_kept(table)
        check_names(table.column_names, uri)
        table = self.path_columns.added_to(table, [uri])
        batch = batch_of(table, ids, warnings, self.failing)
        if matches is None:
            return batch
        rows = np.flatnonzero(np.isin(batch.ids, ids[matches]))
        return batch.derived(batch.table.take(pa.array(rows)), rows, ())

    def _whole_files(self, reader: WholeFileReader, files: list[InputFile]) -> Iterator[RowBatch]:
        """Yield the rows of files that are one row each. Files are prefetched in groups. Raises
        JobFailure if a file cannot be fetched because of a storage error."""
        threads = LOCAL_THREADS if self.root.local else REMOTE_THREADS
        fetch = partial(_fetched, reader, self.root, checks_version=self.fails_on_change)
        with Prefetch(fetch, threads) as prefetch:
            groups = self._grouped(files, lambda file: file.size)
            fetched = prefetch.fetched(groups)
            files_read = (self._decoded(reader, file, content) for file, content in fetched)
            # group again, because decoded files may be much larger
            for decoded in self._grouped(files_read, _decoded_bytes):
                yield self._whole_file_batch(reader, decoded)

    def _grouped(
        self, items: Iterable[Item], size_of: Callable[[Item], int]
    ) -> Iterator[list[Item]]:
        """Yield groups of items. A group ends at GROUP_FILES items or at `group_bytes` bytes."""
        groups = grouped(items, size_of, self.group_bytes, GROUP_FILES)
        return cast("Iterator[list[Item]]", groups)  # because no item is a BadRow

    def _decoded(
        self, reader: WholeFileReader, file: InputFile, content: bytes | BadRow
    ) -> _DecodedFile:
        if isinstance(content, BadRow):
            return _DecodedFile(file, content, [])
        with collect_warnings() as warnings, self.note(pack_id(file.number, 0)):
            return _DecodedFile(file, reader.decode_or_bad(content), warnings)

    def _whole_file_batch(self, reader: WholeFileReader, decoded: list[_DecodedFile]) -> RowBatch:
        batches = [
            RowBatch.unreadable(consecutive_ids(item.file.number, 0, 1), item.value.error)
            for item in decoded
            if isinstance(item.value, BadRow)
        ]
        good = [item for item in decoded if not isinstance(item.value, BadRow)]
        if good:
            table = reader.table([item.value for item in good])
            uris = [self.root.at(item.file.path).uri for item in good]
            ids = np.array([pack_id(item.file.number, 0) for item in good], dtype=np.int64)
            warnings = [
                warning._replace(row=row)
                for row, item in enumerate(good)
                for warning in item.warnings
            ]
            table = self.path_columns.added_to(table, uris)
            batches.append(batch_of(table, ids, warnings, self.failing))
        return merged(batches)


class _DecodedFile(NamedTuple):
    """A file that is one row, its decoded content, and the warnings of the decoder."""

    file: InputFile
    value: Any | BadRow
    warnings: list[RowWarning]


def _decoded_bytes(item: _DecodedFile) -> int:
    values = item.value if isinstance(item.value, tuple) else (item.value,)
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


def _fetched(
    reader: WholeFileReader, root: Location, file: InputFile, *, checks_version: bool
) -> bytes | BadRow:
    """Return the content of a file, or a BadRow. Raises JobFailure for a storage error. With
    `checks_version`, raises BadInput if the file has changed since it was listed."""
    address = root.at(file.path)
    try:
        content = reader.fetch(address)
        if checks_version and root.local:
            _check_unchanged(address, file)
        elif checks_version:
            _check_size(address, file, content, reader.max_row_bytes + 1)
        return content
    except (OSError, MemoryError) as error:
        if is_storage_error(error):
            raise _unreadable(address, error) from error
        return BadRow(error)


def _check_size(address: Location, file: InputFile, content: bytes, limit: int) -> None:
    """Raise BadInput if the content of a file, up to `limit` bytes, has another size than in the
    snapshot. The time is not compared: a request for it takes as long as reading a small file."""
    if file.version is not None and len(content) != min(file.version[0], limit):
        raise _changed(address, file.version, (len(content), None))


def _check_unchanged(address: Location, file: InputFile) -> None:
    """Raise BadInput if a file has another version than in the snapshot. A deleted file causes no
    error, because it was read before."""
    if file.version is None or (info := address.info()).type == pafs.FileType.NotFound:
        return
    (size, modified), now = file.version, info.mtime_ns
    later = 0 if None in (modified, now) else abs(now - modified)
    if info.size not in (None, size) or later >= (1 if address.local else STORE_TIME_NS):
        raise _changed(address, file.version, (info.size, now))


def _unreadable(address: Location, error: Exception) -> JobFailure:
    return JobFailure(f"{address.uri} cannot be read: {error}")


def _changed(address: Location, listed: Version, now: Version) -> BadInput:
    change = describe_change(address.uri, listed, now)
    return BadInput(f"{change}. When no program changes it any more, {START_OVER_HINT}")
