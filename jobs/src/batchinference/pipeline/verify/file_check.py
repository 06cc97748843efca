"""Compares the files of an output with their commits, and counts their rows. Also finds orphan
files, which no manifest entry names.

Files are read in chunks, so that large files need no more memory."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, TypeAlias, cast

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.manifest import DataFile
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.error_classification import raise_storage_error
from batchinference.pipeline.storage.arrow_files import parquet_metadata
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.storage.retry import with_retries
from batchinference.pipeline.verify.findings import Defect, Kind, Position
from batchinference.spec.write import Write, WriteCsv, WriteJson, WriteOpenaiBatch, WriteWebdataset

CHUNK_BYTES = 4 << 20
LINE_END, QUOTE = b'\n"'
DAMAGE = (pa.ArrowInvalid, zlib.error, EOFError, ValueError, OSError)
"""Exceptions while reading a damaged file. OSError can also mean that storage is unavailable."""
FileCounter: TypeAlias = Callable[[Location], int]
StreamCounter: TypeAlias = Callable[[BinaryIO], int]


Listed: TypeAlias = Callable[..., dict[str, int]]
"""Does the same as `sizes_in`, but lists each directory only once."""
Checked: TypeAlias = tuple[int | None, Defect | None]
"""The number of rows of a file (None if they were not counted), and its defect, if any."""


class _Differs(ValueError):
    """The size or the checksum of a file differs from the committed one."""


@dataclass(frozen=True)
class StoredFiles:
    """The data files or the error files of an output."""

    directory: Location
    sizes: dict[str, int]
    """The size in bytes of each file in a listing of the directory, by name."""
    from_header: FileCounter | None
    """Returns the number of rows in the footer of a file; None if the files have no footers."""
    from_bytes: StreamCounter | None
    """Counts the rows of a file from all of its bytes; None if the files have footers."""
    quick: bool
    """Whether to check only the sizes and the footers of files, and not their content."""

    @classmethod
    def of_rows(cls, layout: Layout, write: Write, listed: Listed, *, quick: bool) -> StoredFiles:
        """Return the data files of an output."""
        return cls(layout.data, listed(layout.data), *counters_for(write), quick)

    @classmethod
    def of_errors(cls, layout: Layout, listed: Listed, *, quick: bool) -> StoredFiles:
        """Return the error files of an output."""
        return cls(layout.errors, listed(layout.errors, layout.output), footer_rows, None, quick)

    def check(self, file: DataFile) -> Checked:
        """Compare a file with its commit. Raises OSError if storage is unavailable."""
        address = self.directory / file.name
        try:
            size = self.sizes.get(file.name) or address.info().size  # the file may be newer
            if size is None:
                raise FileNotFoundError
            if size != file.bytes:
                raise _Differs(f"{size} bytes, and {file.bytes} were committed")
            return with_retries(lambda: self._read(address, file.crc32)), None
        except FileNotFoundError:
            return None, (Kind.GONE, Position(address.uri), 1)
        except DAMAGE as error:
            raise_storage_error(error)
            detail = f"its rows cannot be counted: {type(error).__name__}"
            if isinstance(error, _Differs):
                detail = str(error)
            return None, (Kind.DAMAGED, Position(address.uri, detail=detail), 1)

    def orphans(self, named: set[str], prefix: str) -> Iterator[Defect]:
        """Yield the files that begin with `prefix` and that no manifest entry names."""
        for name in sorted(self.sizes.keys() - named):
            file = self.directory / name
            if base_name(name).startswith(prefix) and file.exists():
                yield Kind.ORPHANS, Position(file.uri), 1

    def _read(self, address: Location, crc32: int) -> int | None:
        """Check the checksum of a file, and return its number of rows; None if not counted."""
        rows = None
        if not self.quick:
            checksum, rows = _checksum_and_rows(address, self.from_bytes)
            if checksum != crc32:
                raise _Differs("its checksum is not the one that was committed")
        return self.from_header(address) if self.from_header else rows


def sizes_in(directory: Location, but: Location | None = None) -> dict[str, int]:
    """List a directory without the directory `but`, and return `StoredFiles.sizes`."""
    return {directory.relative(info.path): info.size for info in directory.visible_files(but)}


class ChecksumReader(io.RawIOBase):
    """Reads a file, and computes the checksum of the bytes read."""

    def __init__(self, source: pa.NativeFile) -> None:
        super().__init__()
        self._source = source
        self.crc32 = 0

    def readable(self) -> bool:
        """Return True, so that io.BufferedReader accepts this object."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read into the buffer, and return the number of bytes; 0 at the end of the file."""
        size = int(self._source.readinto(buffer))
        self.crc32 = zlib.crc32(memoryview(buffer)[:size], self.crc32)
        return size


def _checksum_and_rows(file: Location, count: StreamCounter | None) -> tuple[int, int | None]:
    """Return the checksum and the number of rows of a file (None without `count`, 0 if damaged)."""
    with file.open_input_file() as opened:
        reader = ChecksumReader(opened)
        source = cast(BinaryIO, io.BufferedReader(reader, CHUNK_BYTES))
        rows = None
        try:
            rows = count(source) if count else None
        except DAMAGE as error:
            raise_storage_error(error)
            rows = 0
        while source.read(CHUNK_BYTES):
            pass
        return reader.crc32, rows


def counters_for(write: Write) -> tuple[FileCounter | None, StreamCounter | None]:
    """Return the functions `from_header` and `from_bytes` of StoredFiles. One of them is None."""
    match write:
        case WriteJson():
            return None, partial(_decompressed, _lines, write.compression)
        case WriteOpenaiBatch():
            return None, _lines
        case WriteCsv():
            return None, partial(_decompressed, csv_records, write.compression)
        case WriteWebdataset():
            return None, _samples
    return footer_rows, None


def footer_rows(file: Location) -> int:
    """Return the number of rows in the footer of a Parquet file."""
    with file.open_input_file() as source:
        return int(parquet_metadata(source).num_rows)


def _decompressed(count: StreamCounter, compression: str, source: BinaryIO) -> int:
    is_gzip = compression == "gzip"
    return count(cast(BinaryIO, gzip.GzipFile(fileobj=source)) if is_gzip else source)


def _chunks(source: BinaryIO, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    return iter(partial(source.read, chunk_bytes), b"")


def _lines(source: BinaryIO) -> int:
    return sum(chunk.count(b"\n") for chunk in _chunks(source))


def csv_records(source: BinaryIO, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return the number of CSV records after the header. Records may have quoted line ends."""
    lines, quoted = 0, False
    for chunk in _chunks(source, chunk_bytes):
        content = np.frombuffer(chunk, np.uint8)
        inside = np.logical_xor.accumulate(content == QUOTE) ^ quoted
        lines += int(np.count_nonzero((content == LINE_END) & ~inside))
        quoted = bool(inside[-1])
    return max(0, lines - 1)


def _samples(source: BinaryIO) -> int:
    """Return the number of samples: consecutive members with the same key are one sample."""
    import tarfile  # only here, to save memory

    samples, last = 0, None
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined] # tarfile would keep all members
                key = member.name.partition(".")[0]
                samples, last = samples + (key != last), key
    except tarfile.TarError as error:
        raise ValueError(f"not a complete tar archive: {error}") from error
    return samples
