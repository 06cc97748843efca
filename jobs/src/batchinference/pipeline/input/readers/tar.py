"""Reads samples from tar archives, as defined by the WebDataset library."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

from batchinference.pipeline.input.readers.base import MAX_COLUMNS

MAX_HEADER_BYTES = 1 << 20
"""Maximum bytes of a header that holds a name or attributes. tarfile reads it at once."""
_HEADERS = {
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
}
MAX_EMPTY_READS = 100
"""Maximum number of reads past the end of an archive. tarfile keeps reading until it has skipped
the size that a member claims, which may take years."""
_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


@dataclass
class Sample:
    """Consecutive members that share a name up to its first dot. `members` maps the rest of the
    name (the suffix) to the content."""

    key: str
    members: dict[str, bytes] = field(default_factory=dict)
    suffixes: set[str] = field(default_factory=set)
    """The suffixes of all members, including skipped members."""
    repeated: str | None = None
    """The suffix of a member that occurs twice."""
    too_large: str | None = None
    """The suffix of the member that exceeded the byte or member limit. `members` is empty then."""
    size: int = 0
    """Total bytes of the members."""


class _TarInfo(tarfile.TarInfo):
    """A TarInfo that raises ReadError for a damaged header. tarfile treats such a header as the end
    of the archive, which would lose rows."""

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
    """An archive that allows only MAX_EMPTY_READS reads past its end."""

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._empty = source, 0

    def read(self, size: int) -> bytes:
        content = self._source.read(size)
        self._empty = 0 if content else self._empty + 1
        if self._empty > MAX_EMPTY_READS:
            raise tarfile.ReadError("the archive ends within a member")
        return content


def samples_of(source: BinaryIO, suffixes: list[str] | None, most: int) -> Iterator[Sample]:
    """Yield the samples of a decompressed archive, with the members that have one of these suffixes
    (all members if None). At most `most` bytes of a sample are read.

    Raises tarfile.TarError, or an error of the decompressor, if the archive is damaged.
    """
    sample: Sample | None = None
    ending = cast(BinaryIO, _Ending(source))
    with tarfile.open(fileobj=ending, mode="r|", tarinfo=_TarInfo) as archive:
        for member in archive:
            # tarfile would keep all members in memory
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
