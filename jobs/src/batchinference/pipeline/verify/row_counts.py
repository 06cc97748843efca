"""How many rows a file of an output holds, by the rule of its format.

Of a file a chunk is in memory, however large the file is.
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
"""What counting raises for a damaged file, and OSError for storage that is away too."""
Told: TypeAlias = Callable[[Location], int]
Streamed: TypeAlias = Callable[[BinaryIO], int]


def told_by(write: Write) -> Told | None:
    """How files tell their rows without being read as a whole; None where they do not."""
    match write:
        case WriteParquet():
            return footer_rows
        case WriteNumpy():
            return _header_rows
    return None


def counted_by(write: Write) -> Streamed | None:
    """How rows are counted in the bytes of a file; None where files tell them, and of `images`,
    where a file is a row, and a row need not have one."""
    match write:
        case WriteJson():
            return partial(_unpacked, _lines, write.compression)
        case WriteCsv():
            return partial(_unpacked, _records, write.compression)
        case WriteShards():
            return _samples
    return None


def footer_rows(file: Location) -> int:
    """The rows of a parquet file."""
    with file.filesystem.open_input_file(file.path) as source:
        return int(parquet_metadata(source).num_rows)


def _header_rows(file: Location) -> int:
    return NumpyReader(NumpyOptions()).rows_in(file, 0)


def _unpacked(count: Streamed, compression: str, source: BinaryIO) -> int:
    packed = compression == "gzip"
    return count(cast(BinaryIO, gzip.GzipFile(fileobj=source)) if packed else source)


def _chunks(source: BinaryIO) -> Iterator[bytes]:
    while chunk := source.read(CHUNK_BYTES):
        yield chunk


def _lines(source: BinaryIO) -> int:
    return sum(chunk.count(b"\n") for chunk in _chunks(source))


def _records(source: BinaryIO) -> int:
    """Lines but for the header, and but for line ends between quotes."""
    lines, quoted = 0, False
    for chunk in _chunks(source):
        content = np.frombuffer(chunk, np.uint8)
        inside = np.logical_xor.accumulate(content == QUOTE) ^ quoted
        lines += int(np.count_nonzero((content == LINE_END) & ~inside))
        quoted = bool(inside[-1])
    return max(0, lines - 1)


def _samples(source: BinaryIO) -> int:
    return sum(1 for _ in samples_of(source, [], 0))
