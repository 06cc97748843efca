"""One module a format: from the bytes of a file to tables of rows."""

from __future__ import annotations

from batchinference.pipeline.readers import binary, csv, images, json, parquet, text
from batchinference.pipeline.readers.base import Reader
from batchinference.spec.read import Read

_READERS = {
    "images": images.ImageReader,
    "parquet": parquet.ParquetReader,
    "json": json.JsonReader,
    "csv": csv.CsvReader,
    "text": text.TextReader,
    "binary": binary.BinaryReader,
}


def reader_for(read: Read) -> Reader:
    """The reader of a format, with its options."""
    reader: Reader = _READERS[read.format](read.options)
    return reader
