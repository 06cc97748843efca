"""Reads files as batches of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchinference.pipeline import row_ids
from batchinference.pipeline.error_attribution import is_about_the_file, is_storage_error
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.input.base import check_names
from batchinference.pipeline.input.listing import InputFile
from batchinference.pipeline.input.path_columns import PathColumns
from batchinference.pipeline.input.readers.base import (
    BadRow,
    Chunk,
    DivisibleReader,
    Reader,
)
from batchinference.pipeline.input.readers.chunks import (
    after,
    first,
    size_of,
    within,
)
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.input.whole_files import whole_files
from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.retry import ATTEMPTS, RetryBudget


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
            yield from whole_files(self.root, self.reader, self.path_columns, files)
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
        ids = row_ids.consecutive(file.number, row, size_of(chunk))
        if isinstance(chunk, BadRow):
            return RowBatch.unreadable(ids, chunk.error)
        uri = self.root.at(file.path).uri
        check_names(chunk.column_names, uri)
        return RowBatch.read(self.path_columns.added_to(chunk, uri), ids)


def _bear(patience: RetryBudget, error: OSError, address: Location) -> None:
    try:
        patience.wait_or_raise(error)
    except OSError:
        raise JobFailure(f"{address.uri} cannot be read: {error}") from error
