"""Samples in tar archives, as the WebDataset library defines them."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

from batchinference.pipeline.input.readers.base import MAX_COLUMNS

MAX_HEADER_BYTES = 1 << 20
"""Of a header that holds a name or attributes. tarfile reads them whole."""
_HEADERS = {
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
}
MAX_EMPTY_READS = 100
"""Behind the end of an archive. tarfile reads on until it has passed what a member claims to have,
which may take years."""
_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


@dataclass
class Sample:
    """Neighbouring members that share a name up to its first dot: `members` by what follows."""

    key: str
    members: dict[str, bytes] = field(default_factory=dict)
    suffixes: set[str] = field(default_factory=set)
    """Of all members, also of those that are passed over."""
    repeated: str | None = None
    """A member that is there twice."""
    too_large: str | None = None
    """What the sample has too many bytes by, so that the members are not there."""
    size: int = 0
    """Bytes of the members."""


class _TarInfo(tarfile.TarInfo):
    """tarfile takes a damaged header for the end of the archive, and rows would be lost."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _TarInfo:
        try:
            return super().fromtarfile(archive)
        except (
            tarfile.InvalidHeaderError,  # type: ignore[attr-defined]
            tarfile.TruncatedHeaderError,  # type: ignore[attr-defined]
        ) as error:
            raise tarfile.ReadError(f"a header is damaged: {error}") from error

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header has {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


class _Ending:
    """An archive that can be read behind its end only a few times."""

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._empty = source, 0

    def read(self, size: int) -> bytes:
        content = self._source.read(size)
        self._empty = 0 if content else self._empty + 1
        if self._empty > MAX_EMPTY_READS:
            raise tarfile.ReadError("the archive ends within a member")
        return content


def samples_of(source: BinaryIO, suffixes: list[str] | None, most: int) -> Iterator[Sample]:
    """The samples of an unpacked archive, with members of these suffixes. Of a sample, no more than
    `most` bytes are read.

    Raises tarfile.TarError, or what unpacking raises, where the archive is damaged.
    """
    sample: Sample | None = None
    ending = cast(BinaryIO, _Ending(source))
    with tarfile.open(fileobj=ending, mode="r|", tarinfo=_TarInfo) as archive:
        for member in archive:
            # tarfile would keep all of them
            archive.members = []  # type: ignore[attr-defined]
            match = _NAME.match(member.name)
            if not member.isreg() or match is None:
                continue
            key, suffix = match[1], match[2].lower()
            if sample is None or key != sample.key:
                if sample is not None:
                    yield sample
                sample = Sample(key)
            sample.suffixes.add(suffix)
            if suffixes is None or suffix in suffixes:
                _add(sample, suffix, archive, member, most)
    if sample is not None:
        yield sample


def _add(
    sample: Sample, suffix: str, archive: tarfile.TarFile, member: tarfile.TarInfo, most: int
) -> None:
    if suffix in sample.members:
        sample.repeated = suffix
        return
    if sample.size + member.size > most or len(sample.members) >= MAX_COLUMNS:
        sample.too_large = suffix
        sample.members.clear()
        sample.size = 0
    content = archive.extractfile(member)
    if content is not None and sample.too_large is None:
        sample.members[suffix] = content.read()
        sample.size += len(sample.members[suffix])
