"""Reads text files in chunks of complete lines, reads samples, and opens and decompresses files.

A text file is decompressed while it is read if its extension names a compression, such as .gz."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import itertools
import lzma
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO, TypeVar, cast

import pyarrow as pa

from batchinference.pipeline.error_classification import raise_storage_error
from batchinference.pipeline.input.readers import BadRow, grouped
from batchinference.pipeline.storage.location import Location, MissingEnd

BUFFER_BYTES = 4 << 20
"""Bytes per fetch. In an object store, each fetch is a request."""
SAMPLE_BYTES = 4 << 20
"""Bytes of a file that are read to estimate its number of rows."""
_GZIP, _BZIP2, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ"
TOO_LARGE = (
    "read.options.maxRowBytes: the {0} has more bytes than the limit ({1}). Raise the limit, or "
    "reduce the size of the {0}"
)
"""The message for data that is too large. {0} names the line, file or sample; {1} is the limit."""
Record = TypeVar("Record")
CHUNK_BYTES = 4 << 20
"""Bytes of a file that are read at once by `line_chunks`."""
LINE_SAMPLE_BYTES, MIN_SAMPLE_BYTES, SAMPLED_BYTES = 1 << 20, 1 << 15, 8 << 20
"""Bytes that are read to infer column types: the maximum and the minimum per file, and the
approximate total of all files."""
SAMPLE_THREADS = 16


@contextmanager
def open_raw(file: Location, buffer_bytes: int = BUFFER_BYTES) -> Iterator[io.BufferedReader]:
    """Open a file for reading and seeking, without decompressing it."""
    with file.filesystem.open_input_file(file.path) as source:
        yield io.BufferedReader(source, buffer_bytes)


def unpacked(source: io.BufferedReader) -> BinaryIO:
    """Return the content of a file as a stream, decompressed if it is gzip."""
    packed = source.peek(len(_GZIP)).startswith(_GZIP)
    return cast(BinaryIO, gzip.GzipFile(fileobj=source)) if packed else source


def archive_in(source: io.BufferedReader) -> BinaryIO:
    """Return an archive as a stream, decompressed if it is gzip, bzip2 or xz. `tarfile` would
    decompress 10 KB at once, which can become several GiB."""
    beginning = source.peek(len(_XZ))
    if beginning.startswith(_BZIP2):
        return cast(BinaryIO, bz2.BZ2File(source))
    return cast(BinaryIO, lzma.LZMAFile(source)) if beginning.startswith(_XZ) else unpacked(source)


def up_to_damage(
    records: Iterator[Record], damage: tuple[type[Exception], ...]
) -> Iterator[Record | Exception]:
    """Yield the records of a file. An exception of the types `damage` is yielded as the last item,
    because the rest of the file cannot be read."""
    try:
        yield from records
    except damage as error:
        yield error
    except OSError as error:
        raise_storage_error(error)
        yield error  # it is not a storage error, so a decoder has raised it


def beginning(
    records: Iterator[Record], source: BinaryIO, count: int, size_of: Callable[[Record], int]
) -> Iterator[Record]:
    """Yield the first records of a file. Ends after `count` records, or after SAMPLE_BYTES of the
    file or of the records."""
    size = 0
    for record in itertools.islice(records, count):
        yield record
        size += size_of(record)
        if source.tell() >= SAMPLE_BYTES or size >= SAMPLE_BYTES:
            return


def estimate(records: Iterator[object], source: BinaryIO, size: int) -> int:
    """Return the number of records in a file of `size` bytes, estimated from the first records."""
    count = 0
    for count, _ in enumerate(records, 1):
        read = source.tell()
        if read >= SAMPLE_BYTES:
            return max(1, round(count * size / read))
    return count


def line_chunks(
    file: Location, max_bytes: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[bytes | BadRow]:
    """Yield a file in chunks of about `chunk_bytes` that end at line ends, without the UTF-8 byte
    order mark. A line of more than `max_bytes` becomes a failed row."""
    for chunk in _chunks(file, max_bytes, chunk_bytes):
        if isinstance(chunk, BadRow) or len(chunk) <= max_bytes:
            yield chunk
        else:
            yield from _without_long_lines(chunk, max_bytes)


def _chunks(file: Location, max_bytes: int, chunk_bytes: int) -> Iterator[bytes | BadRow]:
    rest, skipping = b"", False
    for block in _blocks(file, chunk_bytes):
        begin = block.find(b"\n") + 1 if skipping else 0  # skips the rest of a long line
        if skipping and not begin:
            continue
        end = block.rfind(b"\n") + 1
        if begin < end:
            yield rest + block[begin:end]
            rest = b""
        rest += block[max(begin, end) :]
        skipping = len(rest) > max_bytes
        if skipping:
            yield BadRow(_too_long(max_bytes))
            rest = b""
    if rest:
        yield rest


def _blocks(file: Location, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    with file.open_stream() as stream:
        block = bytes(stream.read1(size)).removeprefix(codecs.BOM_UTF8)
        while block:
            yield block
            block = bytes(stream.read1(size))


def _without_long_lines(chunk: bytes, limit: int) -> Iterator[bytes | BadRow]:
    lines = chunk.removesuffix(b"\n").split(b"\n")
    too_long = BadRow(_too_long(limit))
    for group in grouped(line if len(line) <= limit else too_long for line in lines):
        yield group if isinstance(group, BadRow) else b"\n".join([*group, b""])


def _too_long(limit: int) -> ValueError:
    return ValueError(TOO_LARGE.format("line", limit))


def read_whole(file: Location, max_bytes: int) -> bytes:
    """Return the content of a file. Raises ValueError if it has more than `max_bytes`."""
    content = bytearray()
    for block in _blocks(file):
        content += block
        if len(content) > max_bytes:
            raise ValueError(TOO_LARGE.format("file", max_bytes))
    return bytes(content)


def samples_of(
    files: Sequence[Location], max_bytes: int | None = None
) -> Iterator[tuple[Location, bytes]]:
    """Yield each file with its first complete lines: about SAMPLED_BYTES of all files together.

    A file has between MIN_SAMPLE_BYTES and LINE_SAMPLE_BYTES of lines. `max_bytes` replaces
    SAMPLED_BYTES and LINE_SAMPLE_BYTES. A damaged file has no lines. A first line that is too long
    for a sample is left out or cut."""
    share = (max_bytes or SAMPLED_BYTES) // max(1, len(files))
    size = min(max(MIN_SAMPLE_BYTES, share), max_bytes or LINE_SAMPLE_BYTES)
    step = -(-len(files) // (SAMPLED_BYTES // LINE_SAMPLE_BYTES))
    with ThreadPoolExecutor(SAMPLE_THREADS) as pool:
        samples = pool.map(lambda file: _sample(file, size)[0], files)
        for number, (file, sample) in enumerate(zip(files, samples, strict=True)):
            yield file, _sample(file)[0] if not sample and number % step == 0 else sample


def estimated_rows(file: Location, size: int) -> int:
    """Return the number of lines in a file of `size` bytes, estimated from the first lines."""
    sample, read = _sample(file)
    lines = sample.count(b"\n") + (not sample.endswith(b"\n"))
    return max(1, round(size * lines / read)) if sample else 0


def _sample(file: Location, size: int | None = None) -> tuple[bytes, int]:
    """Return the complete lines in the first `size` unpacked bytes of a file, and their approximate
    size in the file. By default, `size` is LINE_SAMPLE_BYTES, and a longer first line is cut."""
    size = size or LINE_SAMPLE_BYTES
    try:
        with file.filesystem.open_input_file(file.path) as source:
            unpacked = file.unpacked(source)
            content = unpacked.read1(size)
            read = source.tell()
            is_complete = len(content) < size and _has_end(unpacked)
    except OSError as error:
        raise_storage_error(error)
        return b"", 0  # the file becomes a failed row when it is read
    head = content.removeprefix(codecs.BOM_UTF8)
    if is_complete:
        return head, read
    is_long_line = len(content) == LINE_SAMPLE_BYTES
    lines = head[: head.rfind(b"\n") + 1] or (head if is_long_line else b"")
    return lines, max(1, round(read * len(lines) / len(content)))


def _has_end(stream: io.BufferedReader | pa.NativeFile) -> bool:
    """Return whether a file is complete. All of its bytes must have been read from the stream."""
    try:
        stream.read1(1)
    except MissingEnd:
        return False
    return True
