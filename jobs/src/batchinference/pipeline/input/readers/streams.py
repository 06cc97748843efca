"""Reads files that hold many records sequentially."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeVar, cast

from batchinference.pipeline.error_attribution import raise_storage_error
from batchinference.pipeline.storage.location import Location

BUFFER_BYTES = 4 << 20
"""Bytes per fetch. Each fetch from an object store is one request."""
SAMPLE_BYTES = 4 << 20
"""Bytes of a file that are read to estimate its number of rows."""
_GZIP, _BZIP2, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ"
Record = TypeVar("Record")


@contextmanager
def opened(file: Location, buffer_bytes: int = BUFFER_BYTES) -> Iterator[io.BufferedReader]:
    """Open a file for reading and seeking, without decompressing it."""
    with file.filesystem.open_input_file(file.path) as source:
        yield io.BufferedReader(source, buffer_bytes)


def unpacked(source: io.BufferedReader) -> BinaryIO:
    """Return the content of a file as a stream, decompressed if it is gzip."""
    packed = source.peek(len(_GZIP)).startswith(_GZIP)
    return cast(BinaryIO, gzip.GzipFile(fileobj=source)) if packed else source


def archive_in(source: io.BufferedReader) -> BinaryIO:
    """Return an archive as a stream, decompressed if it is gzip, bzip2 or xz. tarfile itself would
    decompress 10 KB at once, which may become GiB."""
    beginning = source.peek(len(_XZ))
    if beginning.startswith(_BZIP2):
        return cast(BinaryIO, bz2.BZ2File(source))
    return cast(BinaryIO, lzma.LZMAFile(source)) if beginning.startswith(_XZ) else unpacked(source)


def up_to_damage(
    records: Iterator[Record], damage: tuple[type[Exception], ...]
) -> Iterator[Record | Exception]:
    """Yield the records of a file. If the file is damaged, yield one error for the rest of it."""
    try:
        yield from records
    except damage as error:
        yield error
    except OSError as error:  # a decoder raised it, unless it is a storage error
        raise_storage_error(error)
        yield error


def beginning(
    records: Iterator[Record], source: BinaryIO, most: int, size_of: Callable[[Record], int]
) -> Iterator[Record]:
    """Yield at most `most` of the first records of a file. Stops when SAMPLE_BYTES of the file are
    read or the records have that size."""
    size = 0
    for record in itertools.islice(records, most):
        yield record
        size += size_of(record)
        if source.tell() >= SAMPLE_BYTES or size >= SAMPLE_BYTES:
            return


def estimate(records: Iterator[object], source: BinaryIO, size: int) -> int:
    """Return the estimated number of records in a file of `size` bytes, based on its beginning."""
    count = 0
    for count, _ in enumerate(records, 1):
        read = source.tell()
        if read >= SAMPLE_BYTES:
            return max(1, round(count * size / read))
    return count
