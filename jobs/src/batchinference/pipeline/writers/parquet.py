"""Parquet files, by pyarrow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.writers.base import plain


class ParquetWriter:
    extension = ".parquet"

    def __init__(self, compression: str) -> None:
        self._compression = compression

    def encode(self, table: pa.Table) -> memoryview:
        sink = pa.BufferOutputStream()
        pq.write_table(plain(table), sink, compression=self._compression)
        return memoryview(sink.getvalue())
