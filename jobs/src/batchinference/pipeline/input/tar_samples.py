"""Groups the members of untrusted tar archives into samples.

The members of a sample may be anywhere in an archive. So in `samples_of`, one pass over the headers
finds all members, and another reads the samples. Two numbers per member are in memory."""

from __future__ import annotations

import io
import lzma
import re
import struct
import tarfile
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import numpy as np

MEMORY_BYTES, BLOCK_BYTES = 24 << 20, 1 << 16
"""The maximum size of a decompressed archive that is read into memory, and the bytes per read."""
SMALL_BUFFER = 1 << 16
"""Bytes per fetch if the next member is elsewhere in the archive."""
DAMAGE = (
    *(tarfile.TarError, EOFError, zlib.error, lzma.LZMAError),
    *(ValueError, OverflowError, RecursionError, MemoryError, struct.error),
)
_NAME = re.compile(r"^(?:\./+(?!/))*(?!\./)((?:.*/|)[^./]+)[.]([^/]+)$", re.DOTALL)
"""Matches the key of a member (with its folder) and the suffix after the first dot of its file
name: `./a/b.seg.png` has the key `a/b` and the suffix `seg.png`. The lookaheads prevent
backtracking in `./`. (Possessive quantifiers have bugs before Python 3.11.5.)"""
_METADATA = re.compile(
    r"(?:^|/)(?:__MACOSX/|PaxHeaders?(?:\.\d+)?/|(?:\._[^/]*|\.DS_Store|Thumbs\.db|desktop\.ini)$)"
)
"""Matches files that operating systems and archive programs add."""


@dataclass
class Sample:
    """Members whose names have the same key. `members` maps suffixes to contents."""

    key: str
    members: dict[str, bytes] = field(default_factory=dict)
    suffixes: set[str] = field(default_factory=set)
    """The suffixes of all members, including unwanted ones."""
    repeated: str | None = None
    """The suffix of a member that occurs twice."""
    too_large: str | None = None
    """The suffix of the member that exceeded the limit. If it is set, `members` is empty."""
    size: int = 0
    """The total bytes of `members`."""
    ignored: int = 0
    """The number of wanted members that are links or have no key, up to the next sample."""


class _Archive(tarfile.TarFile):
    """A tar archive. `has_end` tells whether the last header that was read is an end mark."""

    has_end = False


class _TarInfo(tarfile.TarInfo):
    """A TarInfo that raises ReadError for a damaged header. `tarfile` would treat this header as
    the end of the archive, and rows would be lost silently."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _TarInfo:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            cast(_Archive, archive).has_end = True
            raise
        except (
            tarfile.InvalidHeaderError,  # type: ignore[attr-defined]
            tarfile.TruncatedHeaderError,  # type: ignore[attr-defined]
        ) as error:
            raise tarfile.ReadError(f"a header is damaged: {error}") from error


class _BoundedFile:
    """A file that never seeks past its end, because some object stores do not allow this."""

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._size = source, source.seek(0, io.SEEK_END)
        self.read, self.tell = source.read, source.tell
        source.seek(0)

    def seek(self, offset: int) -> int:
        return self._source.seek(min(offset, self._size))


def adjacent_samples(source: BinaryIO, suffixes: list[str] | None, limit: int) -> Iterator[Sample]:
    """Yield the samples of an archive in one pass. If members of other samples are between the
    members of a sample, the sample is yielded in parts.

    Reads only members with one of these suffixes (None: all), and at most `limit` bytes per sample.
    `source` is an opened file or a decompressor. Raises one of DAMAGE if the archive is damaged."""
    with _opened(source) as archive:
        yield from _grouped(archive, _members(archive), suffixes, limit)


def samples_of(source: BinaryIO, suffixes: list[str] | None, limit: int) -> Iterator[Sample]:
    """Yield the samples of an archive like `adjacent_samples`, but never in parts. A compressed
    archive is decompressed twice. Raises ValueError if a large compressed archive has samples whose
    members are not adjacent."""
    with _opened(source) as archive:
        offsets, damage = _offsets(archive)
        if (np.diff(offsets) < 0).any():
            if damage is not None:
                raise damage  # members of any sample may be missing
            archive.fileobj = _random_access(source)
        yield from _grouped(archive, _members_at(archive, offsets, damage), suffixes, limit)


def _opened(source: BinaryIO) -> _Archive:
    """Open an archive. Concatenated archives are read as one."""
    bounded: Any = _BoundedFile(source) if isinstance(source, io.BufferedReader) else source
    return _Archive.open(fileobj=bounded, mode="r:", tarinfo=_TarInfo, ignore_zeros=True)


def in_memory(decompressor: BinaryIO, limit: int) -> BinaryIO:
    """Return the content of a compressed archive in memory. Return the decompressor instead if the
    content is damaged, or has more than `limit` or MEMORY_BYTES bytes."""
    content = io.BytesIO()
    with suppress(OSError, *DAMAGE):
        while block := decompressor.read(BLOCK_BYTES):
            content.write(block)
            if content.tell() > min(limit, MEMORY_BYTES):
                break
        else:
            content.seek(0)
            return content
    decompressor.seek(0)
    return decompressor


def _members(archive: _Archive) -> Iterator[tarfile.TarInfo]:
    """Yield all members except directories. Then raise ReadError if the end mark is missing."""
    for member in archive:
        archive.members = []  # type: ignore[attr-defined] # tarfile would keep all members
        archive.has_end = False  # an end mark before this member was of an earlier archive
        if not member.isdir():
            yield member
    if not archive.has_end:
        raise tarfile.ReadError(
            "the archive has no end mark, so members may be missing. Copy or pack it again"
        )


def _offsets(archive: _Archive) -> tuple[np.ndarray, Exception | None]:
    """Return the header offsets (int64) of all members, sorted by sample, and an error if the
    archive is damaged. Samples are in the order of their first members. A member without a key
    stays behind the member that precedes it."""
    keys, offsets, key = array("q"), array("q"), 0
    damage: Exception | None = None
    try:
        for member in _members(archive):
            if (name := _parsed(member)) is not None:
                key = hash(name[0])
            keys.append(key)
            offsets.append(member.offset)
    except DAMAGE as error:
        damage = error
    _, first, sample = np.unique(np.asarray(keys), return_index=True, return_inverse=True)
    order = np.argsort(first[sample], kind="stable")
    return np.asarray(offsets, dtype=np.int64)[order], damage


def _random_access(source: BinaryIO) -> BinaryIO:
    if isinstance(source, io.BytesIO):
        return source
    if not isinstance(source, io.BufferedReader):
        raise ValueError(
            "members of a sample are not adjacent, and the archive is compressed and too large for "
            "memory. Decompress it, or pack it with tar --sort=name"
        )
    return cast(BinaryIO, io.BufferedReader(source.raw, SMALL_BUFFER))


def _members_at(
    archive: tarfile.TarFile, offsets: np.ndarray, damage: Exception | None
) -> Iterator[tarfile.TarInfo]:
    """Yield the members whose headers are at these offsets. At the end, raise `damage`, if any."""
    for offset in offsets.tolist():
        cast(BinaryIO, archive.fileobj).seek(offset)
        yield _TarInfo.fromtarfile(archive)
    if damage is not None:
        raise damage


def _parsed(member: tarfile.TarInfo) -> tuple[str, str] | None:
    """Return the key and the suffix of a member; None if its name has no key."""
    match = None if _METADATA.search(member.name) else _NAME.match(member.name)
    return (match[1], match[2].lower()) if match else None


def _grouped(
    archive: tarfile.TarFile,
    members: Iterable[tarfile.TarInfo],
    suffixes: list[str] | None,
    limit: int,
) -> Iterator[Sample]:
    """Yield samples of adjacent members with equal keys. Raises ValueError if no member is read."""
    endings = None if suffixes is None else tuple(f".{suffix}" for suffix in suffixes)
    key, sample = "", Sample("")
    for member in members:
        name = _parsed(member)
        wanted = endings is None or member.name.lower().endswith(endings)
        if name is not None and name[0] != key:
            if key:
                yield sample
            key = name[0]
            # bytes that are not UTF-8 become escape sequences
            text = key.encode(errors="surrogateescape").decode(errors="backslashreplace")
            sample = Sample(text, ignored=0 if sample.key else sample.ignored)
        if name is None or not member.isreg():
            sample.ignored += wanted
            continue
        sample.suffixes.add(name[1])
        if suffixes is None or name[1] in suffixes:
            _add(sample, name[1], archive, member, limit)
    if key:
        yield sample
    elif sample.ignored:
        raise ValueError(
            f"none of the {sample.ignored} members of the archive is read: their names have no "
            "extension, or they are links"
        )


def _add(
    sample: Sample, suffix: str, archive: tarfile.TarFile, member: tarfile.TarInfo, limit: int
) -> None:
    if suffix in sample.members:
        sample.repeated = suffix
        return
    if sample.size + member.size > limit:
        sample.too_large = suffix
        sample.members.clear()
        sample.size = 0
    content = archive.extractfile(member)
    if content is not None and sample.too_large is None:
        sample.members[suffix] = content.read()
        sample.size += len(sample.members[suffix])
