"""Parquet files, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.writers.base import plain


class ParquetWriter:
    def __init__(self, compression: str) -> None:
        self._compression = compression

    def files(self, table: pa.Table) -> Iterator[tuple[str, memoryview]]:
        sink = pa.BufferOutputStream()
        pq.write_table(plain(table), sink, compression=self._compression)
        yield ".parquet", memoryview(sink.getvalue())
