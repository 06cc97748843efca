"""Reads URL manifests: Parquet or CSV tables with a column of URIs. The reader fetches the content
of each URI (with `storage.url_fetcher`) and adds a column with the contents."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import pyarrow as pa

from batchinference.pipeline.error_classification import is_about_the_file
from batchinference.pipeline.errors import BadInput, JobFailure
from batchinference.pipeline.input.readers import (
    BadRow,
    Chunk,
    DivisibleReader,
    grouped,
    only_gaps,
    or_bad,
    size_of,
    skip_rows,
    take_rows,
)
from batchinference.pipeline.input.readers.csv import CsvReader
from batchinference.pipeline.input.readers.parquet import ParquetReader
from batchinference.pipeline.row_batch import RowRange
from batchinference.pipeline.row_warnings import (
    RowWarning,
    collect_warnings,
    split_warnings,
    with_warnings,
)
from batchinference.pipeline.storage.allowed_addresses import Allowed
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.storage.url_fetcher import (
    THREADS,
    Fetcher,
    PermanentFetchError,
    TransientFetchError,
)
from batchinference.spec.file_extensions import PARQUET, extension_of
from batchinference.spec.read import CsvOptions, ManifestOptions, ParquetOptions
from batchinference.text import decode_text

_OTHER_DELIMITER = re.compile(r"[;|\t]")
CHUNK_ROWS = 32
"""Maximum number of rows per table."""
TABLE_BYTES = 64 << 20
"""Approximate maximum bytes of decoded values per table."""
PREFETCHED_ROWS, PREFETCHED_BYTES = 64, 1 << 30
"""Maximum numbers of rows and bytes that a read task fetches in advance. Rows are decoded later,
one at a time, because decoded images are much larger than the fetched bytes."""
_FIX = "with read.options.onUnreachable: error, only such rows fail"


@dataclass(frozen=True)
class _Row:
    """A BadRow (`chunk`), or row number `row` of the table `chunk` with the fetch of its URI."""

    chunk: Any
    row: int = 0
    fetched: Future[Any] | None = None

    def prefetched_bytes(self, max_bytes: int) -> int:
        """Return the size of the fetched content; `max_bytes` if unknown or after errors."""
        if self.fetched is None:
            return 0
        if not self.fetched.done() or self.fetched.exception() is not None:
            return max_bytes
        return sys.getsizeof(self.fetched.result())


class _Value(NamedTuple):
    """Row number `row` of the table `chunk`, its decoded value, and the warnings of the decoder."""

    chunk: pa.Table
    row: int
    value: Any
    warnings: list[RowWarning]


class UrlManifestReader(DivisibleReader):
    rows_exact = True
    table_bytes = TABLE_BYTES
    prefetched_rows, prefetched_bytes = PREFETCHED_ROWS, PREFETCHED_BYTES

    def __init__(self, options: ManifestOptions) -> None:
        self._options = options
        self._parquet = ParquetReader(ParquetOptions())
        self._csv = CsvReader(CsvOptions(), adjustable=False)
        self._fetcher = Fetcher(Allowed(options.allow), options.max_bytes)

    def prepare(self, samples: list[Location]) -> None:
        parquet = [file for file in samples if _is_parquet(file.path)]
        self._parquet.prepare(parquet)
        self._csv.prepare([file for file in samples if file not in parquet])
        columns = self._listed()
        if columns and self._options.column not in columns:
            one_column = _OTHER_DELIMITER.search(columns[0])
            fix = ". Separate the columns with commas" if one_column else ""
            raise BadInput(
                f"read.options.column: the manifest has no column '{self._options.column}', "
                f"only {', '.join(columns)}{fix}"
            )
        if self._options.decode in columns:
            raise BadInput(
                f"the manifest has a column '{self._options.decode}' of its own, and the fetched "
                "content would replace it. Rename it"
            )

    def can_enter(self, path: str) -> bool:
        return _is_parquet(path)

    def read_part(
        self, file: Location, start: int, stop: int | None, gaps: Sequence[RowRange] = ()
    ) -> Iterator[Chunk]:
        table = self._table(file)
        if isinstance(table, DivisibleReader):
            chunks = table.read_part(file, start, stop, gaps)
        else:
            chunks = skip_rows(start, table.read(file), file.uri)
            chunks = chunks if stop is None else take_rows(stop - start, chunks)
        chunks = only_gaps(gaps, start, chunks) if gaps else chunks
        pool = ThreadPoolExecutor(THREADS)
        try:
            yield from self._tables(self._in_order(self._started(pool, chunks, file)))
        finally:
            pool.shutdown(cancel_futures=True)

    def _started(
        self, pool: ThreadPoolExecutor, chunks: Iterator[Chunk], file: Location
    ) -> Iterator[_Row]:
        """Yield each row after submitting its fetch to the pool."""
        for chunk in _small_chunks(chunks):
            if isinstance(chunk, BadRow):
                yield _Row(chunk)
                continue
            if self._options.column not in chunk.column_names:
                raise BadInput(f"{file.uri} has no column '{self._options.column}'")
            for row, uri in enumerate(chunk.column(self._options.column).to_pylist()):
                yield _Row(chunk, row, pool.submit(self._fetched, uri, file))

    def _in_order(self, started: Iterator[_Row]) -> Iterator[_Row]:
        """Yield the rows in order. Fetches are started in advance: at most `prefetched_rows`, with
        at most `prefetched_bytes`. An unfinished fetch counts as `maxBytes`."""
        waiting: deque[_Row] = deque()
        max_bytes = self._options.max_bytes
        while True:
            while len(waiting) < self.prefetched_rows and (
                sum(row.prefetched_bytes(max_bytes) for row in waiting) + max_bytes
                <= self.prefetched_bytes
                or not waiting
            ):
                if (row := next(started, None)) is None:
                    yield from waiting
                    return
                waiting.append(row)
            yield waiting.popleft()

    def _fetched(self, uri: Any, file: Location) -> bytes | Exception:
        """Return the content of a URI, or the error with which the row fails. Raises JobFailure if
        the URI is unreachable and `onUnreachable` is `fail`."""
        try:
            if not uri or not isinstance(uri, str):
                raise PermanentFetchError(
                    f"there is no address in column '{self._options.column}', but {uri!r}"
                )
            return self._fetcher.fetch(uri, file)
        except TransientFetchError as error:
            if self._options.on_unreachable == "fail":
                raise JobFailure(f"{error} ({_FIX})") from error
            return error
        except Exception as error:
            if not is_about_the_file(error):
                raise
            return error

    def _decode(self, content: bytes) -> Any:
        if self._options.decode == "image":
            from batchinference.pipeline.media import images

            return images.decode(content, self._options)
        return decode_text(content) if self._options.decode == "text" else content

    def _tables(self, rows: Iterator[_Row]) -> Iterator[Chunk]:
        """Yield the rows as tables with the added column."""
        values = map(self._with_value, rows)
        for group in grouped(values, _size, self.table_bytes, key=lambda row: id(row.chunk)):
            yield group if isinstance(group, BadRow) else self._with_column(group)

    def _with_value(self, row: _Row) -> _Value | BadRow:
        """Return a row with its decoded value, or a BadRow with its error."""
        if row.fetched is None:
            return cast(BadRow, row.chunk)
        content = row.fetched.result()
        if isinstance(content, Exception):
            return BadRow(content)
        with collect_warnings() as warnings:
            value = or_bad(lambda: self._decode(content))
        return value if isinstance(value, BadRow) else _Value(row.chunk, row.row, value, warnings)

    def _with_column(self, ready: list[_Value]) -> pa.Table:
        """Return consecutive rows of a chunk as a table with the added column."""
        rows, listed = split_warnings(ready[0].chunk.slice(ready[0].row, len(ready)))
        values = self._to_arrow([row.value for row in ready])
        table = rows.append_column(self._options.decode, values)
        by_row = {at: row.warnings for at, row in enumerate(ready)}
        for warning in listed:
            by_row[warning.row].append(warning)
        return with_warnings(table, by_row)

    def _to_arrow(self, values: list[Any]) -> pa.Array:
        if self._options.decode == "image":
            from batchinference.pipeline.media import images

            return images.to_arrow(values, self._options.size)
        text = self._options.decode == "text"
        return pa.array(values, pa.string() if text else pa.large_binary())

    def _table(self, file: Location) -> ParquetReader | CsvReader:
        return self._parquet if _is_parquet(file.path) else self._csv

    def rows_in(self, file: Location, size: int) -> int | None:
        if _is_parquet(file.path):
            return self._parquet.rows_in(file, size)
        return self.count_listed(file)

    def count_listed(self, file: Location) -> int:
        """Return the number of rows of a manifest without fetching its URIs."""
        return sum(map(size_of, self._table(file).read(file)))

    def columns(self) -> list[str] | None:
        listed = self._listed()
        return [*listed, self._options.decode] if listed else None

    def _listed(self) -> list[str]:
        """Return the columns that the manifest lists, without the added column."""
        names = [*(self._parquet.columns() or []), *(self._csv.columns() or [])]
        return list(dict.fromkeys(names))


def _is_parquet(path: str) -> bool:
    return extension_of(base_name(path)) in PARQUET


def _size(row: _Value) -> int:
    return getattr(row.value, "nbytes", None) or sys.getsizeof(row.value)


def _small_chunks(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        if isinstance(chunk, BadRow):
            yield chunk
            continue
        for start in range(0, chunk.num_rows, CHUNK_ROWS):
            yield chunk.slice(start, CHUNK_ROWS)
