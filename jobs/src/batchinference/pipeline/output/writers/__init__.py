"""Converts tables to the bytes of files. There is one module per output format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchinference.pipeline.output.writers.base import Writer
from batchinference.pipeline.output.writers.csv import CsvWriter
from batchinference.pipeline.output.writers.json import JsonWriter
from batchinference.pipeline.output.writers.numpy import NumpyWriter
from batchinference.pipeline.output.writers.parquet import ParquetWriter

if TYPE_CHECKING:
    from batchinference.spec.write import WriteFiles


def writer_for(write: WriteFiles) -> Writer:
    """Return the writer for a format, with its options."""
    from batchinference.spec.write import (
        WriteCsv,
        WriteImages,
        WriteJson,
        WriteNumpy,
        WriteParquet,
        WriteWebdataset,
    )

    match write:
        case WriteParquet():
            return ParquetWriter(write.compression)
        case WriteJson():
            return JsonWriter(write.compression)
        case WriteCsv():
            return CsvWriter(write.compression, write.delimiter)
        case WriteNumpy():
            return NumpyWriter()
        case WriteWebdataset():
            from batchinference.pipeline.output.writers.webdataset import WebdatasetWriter

            return WebdatasetWriter(write.key_column)
        case WriteImages():
            from batchinference.pipeline.output.writers.images import ImageWriter  # imports Pillow

            return ImageWriter(write.column, write.file_format, write.name_column)


__all__ = ["Writer", "writer_for"]
