"""Files that hold many records, read from beginning to end."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeVar, cast

from batchinference.pipeline.storage.location import Location, raise_trouble

BUFFER_BYTES = 4 << 20
"""What is fetched at a time: each fetch is a request where the file is on an object store."""
SAMPLE_BYTES = 4 << 20
"""How much of a file is looked at to guess its rows."""
_GZIP, _BZIP2, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ"
Record = TypeVar("Record")


@contextmanager
def opened(file: Location, buffer_bytes: int = BUFFER_BYTES) -> Iterator[io.BufferedReader]:
    """A file as it is, and in which one can seek; one that is compressed stays so."""
    with file.filesystem.open_input_file(file.path) as source:
        yield io.BufferedReader(source, buffer_bytes)


def unpacked(source: io.BufferedReader) -> BinaryIO:
    """What a file holds, whether it is compressed with gzip or not."""
    packed = source.peek(len(_GZIP)).startswith(_GZIP)
    return cast(BinaryIO, gzip.GzipFile(fileobj=source)) if packed else source


def archive_in(source: io.BufferedReader) -> BinaryIO:
    """An archive, whether it is compressed with gzip, bzip2 or xz, or not. tarfile would unpack
    10 KB at once, which may become GiB."""
    beginning = source.peek(len(_XZ))
    if beginning.startswith(_BZIP2):
        return cast(BinaryIO, bz2.BZ2File(source))
    return cast(BinaryIO, lzma.LZMAFile(source)) if beginning.startswith(_XZ) else unpacked(source)


def up_to_damage(
    records: Iterator[Record], damage: tuple[type[Exception], ...]
) -> Iterator[Record | Exception]:
    """The records of a file; where it is damaged, its rest is one error."""
    try:
        yield from records
    except damage as error:
        yield error
    except OSError as error:  # of a decoder, unless it is of storage
        raise_trouble(error)
        yield error


def beginning(
    records: Iterator[Record], source: BinaryIO, most: int, size_of: Callable[[Record], int]
) -> Iterator[Record]:
    """The first records of a file: at most so many, none far into it, and few large ones."""
    size = 0
    for record in itertools.islice(records, most):
        yield record
        size += size_of(record)
        if source.tell() >= SAMPLE_BYTES or size >= SAMPLE_BYTES:
            return


def estimate(records: Iterator[object], source: BinaryIO, size: int) -> int:
    """About how many records a file of `size` bytes has, judged by its beginning."""
    count = 0
    for count, _ in enumerate(records, 1):
        read = source.tell()
        if read >= SAMPLE_BYTES:
            return max(1, round(count * size / read))
    return count
