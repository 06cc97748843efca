"""Samples in tar archives, as the WebDataset library defines them."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

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

    @property
    def size(self) -> int:
        return sum(map(len, self.members.values()))


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


def samples_of(source: BinaryIO, suffixes: list[str] | None) -> Iterator[Sample]:
    """The samples of an archive, whether compressed or not, with members of these suffixes.

    Raises tarfile.TarError, or what unpacking raises, where the archive is damaged.
    """
    sample: Sample | None = None
    with tarfile.open(fileobj=source, mode="r|*", tarinfo=_TarInfo) as archive:
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
                _add(sample, suffix, archive, member)
    if sample is not None:
        yield sample


def _add(sample: Sample, suffix: str, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    content = archive.extractfile(member)
    if suffix in sample.members:
        sample.repeated = suffix
    elif content is not None:
        sample.members[suffix] = content.read()
