"""Counts the rows of an output file according to its format.

Only one chunk of a file is in memory at a time, however large the file is.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, TypeAlias, cast

import numpy as np
import pyarrow as pa

from batchinference.pipeline.input.readers.numpy import NumpyReader
from batchinference.pipeline.input.readers.tar import samples_of
from batchinference.pipeline.storage.arrow_files import parquet_metadata
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import NumpyOptions
from batchinference.spec.write import Write, WriteCsv, WriteJson, WriteNumpy, WriteParquet
from batchinference.spec.write import WriteWebdataset as WriteShards

CHUNK_BYTES = 4 << 20
LINE_END, QUOTE = b'\n"'
DAMAGE = (pa.ArrowInvalid, tarfile.TarError, zlib.error, EOFError, ValueError, OSError)
"""Exceptions that counting raises for a damaged file. OSError is also raised if storage is
unavailable."""
Told: TypeAlias = Callable[[Location], int]
Streamed: TypeAlias = Callable[[BinaryIO], int]


def told_by(write: Write) -> Told | None:
    """Return a function that gets the number of rows without reading the whole file; None if the
    format does not store this number."""
    match write:
        case WriteParquet():
            return footer_rows
        case WriteNumpy():
            return _header_rows
    return None


def counted_by(write: Write) -> Streamed | None:
    """Return a function that counts the rows in the bytes of a file. Return None if files store
    their number of rows, and for `images`, where a file is one row, and a row may have no file."""
    match write:
        case WriteJson():
            return partial(_unpacked, _lines, write.compression)
        case WriteCsv():
            return partial(_unpacked, _records, write.compression)
        case WriteShards():
            return _samples
    return None


def footer_rows(file: Location) -> int:
    """Return the number of rows of a Parquet file."""
    with file.filesystem.open_input_file(file.path) as source:
        return int(parquet_metadata(source).num_rows)


def _header_rows(file: Location) -> int:
    return NumpyReader(NumpyOptions(max_row_bytes=1 << 40)).rows_in(file, 0)


def _unpacked(count: Streamed, compression: str, source: BinaryIO) -> int:
    packed = compression == "gzip"
    return count(cast(BinaryIO, gzip.GzipFile(fileobj=source)) if packed else source)


def _chunks(source: BinaryIO) -> Iterator[bytes]:
    while chunk := source.read(CHUNK_BYTES):
        yield chunk


def _lines(source: BinaryIO) -> int:
    return sum(chunk.count(b"\n") for chunk in _chunks(source))


def _records(source: BinaryIO) -> int:
    """Return the number of lines, without the header and without line ends inside quotes."""
    lines, quoted = 0, False
    for chunk in _chunks(source):
        content = np.frombuffer(chunk, np.uint8)
        inside = np.logical_xor.accumulate(content == QUOTE) ^ quoted
        lines += int(np.count_nonzero((content == LINE_END) & ~inside))
        quoted = bool(inside[-1])
    return max(0, lines - 1)


def _samples(source: BinaryIO) -> int:
    return sum(1 for _ in samples_of(source, [], 0))
