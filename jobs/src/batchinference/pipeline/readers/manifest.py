"""Lists of addresses, each of which is fetched: a table in parquet or CSV with one more column."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from batchinference.pipeline.ahead import one_ahead
from batchinference.pipeline.failures import BadInput, JobFailure
from batchinference.pipeline.isolation import is_about_the_row
from batchinference.pipeline.readers import pixels
from batchinference.pipeline.readers.allowed import Allowed
from batchinference.pipeline.readers.base import BadRow, Chunk
from batchinference.pipeline.readers.chunks import after, first, size_of
from batchinference.pipeline.readers.csv import CsvReader
from batchinference.pipeline.readers.fetch import THREADS, Away, Fetcher, Gone
from batchinference.pipeline.readers.parquet import ParquetReader
from batchinference.pipeline.storage import Address
from batchinference.spec.read import CsvOptions, ManifestOptions, ParquetOptions

PIECE_ROWS = 32
"""Rows whose bytes are in memory as one table."""
_WAY_OUT = "read.options.on_unreachable: error would set such rows aside"


class ManifestReader:
    extensions = ("parquet", "csv", "csv.gz")
    rows_exact = True

    def __init__(self, options: ManifestOptions) -> None:
        self._options = options
        self._parquet = ParquetReader(ParquetOptions())
        self._csv = CsvReader(CsvOptions())
        self._fetcher = Fetcher(Allowed(options.allow), options.max_bytes)

    def prepare(self, samples: list[Address]) -> None:
        parquet = [file for file in samples if _is_parquet(file)]
        self._parquet.prepare(parquet)
        self._csv.prepare([file for file in samples if file not in parquet])
        there = self._listed()
        if there and self._options.column not in there:
            raise BadInput(
                f"read.options.column: the manifest has no column '{self._options.column}', "
                f"only {', '.join(there)}"
            )
        if self._options.decode in there:
            raise BadInput(
                f"the manifest has a column '{self._options.decode}' of its own, which is where "
                "what is fetched would go: rename it"
            )

    def read(self, file: Address) -> Iterator[Chunk]:
        return self.read_part(file, 0, None)

    def starts(self, file: Address) -> None:
        """Any row: what costs is not the manifest."""

    def read_part(self, file: Address, start: int, stop: int | None) -> Iterator[Chunk]:
        chunks = after(start, self._table(file).read(file))
        if stop is not None:
            chunks = first(stop - start, chunks)
        pool = ThreadPoolExecutor(THREADS)
        try:
            begun = ((piece, self._begin(pool, piece, file)) for piece in _pieces(chunks))
            for piece, futures in one_ahead(begun):
                yield from self._filled(piece, futures)
        finally:
            pool.shutdown(cancel_futures=True)

    def _begin(self, pool: ThreadPoolExecutor, piece: Chunk, file: Address) -> list[Future[Any]]:
        """Start fetching for the rows of a piece."""
        if isinstance(piece, BadRow):
            return []
        if self._options.column not in piece.column_names:
            raise BadInput(f"{file.uri} has no column '{self._options.column}'")
        uris = piece.column(self._options.column).to_pylist()
        return [pool.submit(self._value, uri, file) for uri in uris]

    def _value(self, uri: Any, file: Address) -> Any:
        """What an address becomes, or the error of its row. Raises JobFailure."""
        try:
            if not uri or not isinstance(uri, str):
                raise Gone(f"there is no address in column '{self._options.column}', but {uri!r}")
            return self._decode(self._fetcher.fetch(uri, file))
        except Away as error:
            if self._options.on_unreachable == "fail":
                raise JobFailure(f"{error} ({_WAY_OUT})") from error
            return error
        except Exception as error:
            if not is_about_the_row(error):
                raise
            return error  # whatever a decoder raises, the row is bad

    def _decode(self, content: bytes) -> Any:
        if self._options.decode == "image":
            return pixels.decode(content, self._options.mode, self._options.size)
        return content.decode() if self._options.decode == "text" else content

    def _filled(self, piece: Chunk, futures: list[Future[Any]]) -> Iterator[Chunk]:
        """The rows of a piece with what was fetched for them."""
        if isinstance(piece, BadRow):
            yield piece
            return
        start, values = 0, [future.result() for future in futures]
        for row, value in enumerate(values):
            if isinstance(value, Exception):
                yield self._with_column(piece.slice(start, row - start), values[start:row])
                yield BadRow(value)
                start = row + 1
        yield self._with_column(piece.slice(start), values[start:])

    def _with_column(self, rows: pa.Table, values: list[Any]) -> pa.Table:
        if not values:
            return pa.table({})
        return rows.append_column(self._options.decode, self._to_arrow(values))

    def _to_arrow(self, values: list[Any]) -> pa.Array:
        if self._options.decode == "image":
            return pixels.to_arrow(values, self._options.size)
        text = self._options.decode == "text"
        return pa.array(values, pa.string() if text else pa.large_binary())

    def _table(self, file: Address) -> ParquetReader | CsvReader:
        return self._parquet if _is_parquet(file) else self._csv

    def rows_in(self, file: Address, size: int) -> int | None:
        if _is_parquet(file):
            return self._parquet.rows_in(file, size)
        return self.count_listed(file)

    def count_listed(self, file: Address) -> int:
        """The rows of a manifest, without fetching what they name."""
        return sum(map(size_of, self._table(file).read(file)))

    def columns(self) -> list[str] | None:
        there = self._listed()
        return [*there, self._options.decode] if there else None

    def _listed(self) -> list[str]:
        """The columns of the manifest itself."""
        names = [*(self._parquet.columns() or []), *(self._csv.columns() or [])]
        return list(dict.fromkeys(names))


def _is_parquet(file: Address) -> bool:
    return file.path.lower().endswith(".parquet")


def _pieces(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        if isinstance(chunk, BadRow):
            yield chunk
            continue
        for start in range(0, chunk.num_rows, PIECE_ROWS):
            yield chunk.slice(start, PIECE_ROWS)
