"""One module an output format: from a table to the bytes of files."""

from __future__ import annotations

from batchinference.pipeline.writers.base import Writer
from batchinference.pipeline.writers.csv import CsvWriter
from batchinference.pipeline.writers.json import JsonWriter
from batchinference.pipeline.writers.parquet import ParquetWriter
from batchinference.spec.write import Write, WriteCsv, WriteParquet


def writer_for(write: Write) -> Writer:
    """The writer of a format, with its options."""
    if isinstance(write, WriteParquet):
        return ParquetWriter(write.compression)
    if isinstance(write, WriteCsv):
        return CsvWriter(write.compression, write.delimiter)
    return JsonWriter(write.compression)


__all__ = ["Writer", "writer_for"]
