"""Expands globs: `*`, `?` and `[abc]` match within a name, and `**` any number of directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import pyarrow.fs as pafs

from batchinference.pipeline.storage.location import Location, base_name

SPECIAL = frozenset("*?[")
"""The characters that make a path a glob."""
_ANY_DEPTH = "**"


@dataclass
class Glob:
    """The files and directories that a glob matches. `start` is the directory above the first
    pattern, and `listed` is what was listed to find the matches."""

    address: Location
    listed: list[pafs.FileInfo] = field(default_factory=list, init=False)
    start: Location = field(init=False)

    def matches(self) -> list[pafs.FileInfo]:
        """Return the files and directories that match, each of them once. A directory whose name
        has brackets is taken literally. Raises OSError."""
        parts = self.address.path.split("/")
        start = next(n for n in range(len(parts)) if self._is_pattern(parts[: n + 1]))
        self.start = self.address.at("/".join(parts[:start]) or "/")
        return list(self._below(self.start, parts[start:]))

    def _is_pattern(self, parts: Sequence[str]) -> bool:
        """Return whether the last part of a path is a pattern, not the name of a directory."""
        special = SPECIAL.intersection(parts[-1])
        if special != {"["}:
            return bool(special)
        return not _is_directory(self.address.at("/".join(parts)).info())

    def _below(self, directory: Location, parts: Sequence[str]) -> Iterator[pafs.FileInfo]:
        part, *rest = parts
        if part == _ANY_DEPTH:
            yield from self._at_any_depth(directory, parts)
            return
        for info in self._content(directory):
            if fnmatchcase(base_name(info.path), part):
                if not rest:
                    yield info
                elif _is_directory(info):
                    yield from self._below(directory.at(info.path), rest)

    def _at_any_depth(self, directory: Location, parts: Sequence[str]) -> Iterator[pafs.FileInfo]:
        for info in self._content(directory, recursive=True):
            # the content of a directory that matches `**` matches, too
            if not (parts[-1] == _ANY_DEPTH and _is_directory(info)):
                names = directory.below(info.path).split("/")
                if _fits(names, parts):
                    yield info

    def _content(self, directory: Location, *, recursive: bool = False) -> list[pafs.FileInfo]:
        content = directory.content(recursive=recursive)
        self.listed += content
        return content


def _is_directory(info: pafs.FileInfo) -> bool:
    return bool(info.type == pafs.FileType.Directory)


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether the names of a relative path match the parts of a pattern."""
    if not parts:
        return not names
    part, *rest = parts
    if part == _ANY_DEPTH:
        return any(_fits(names[start:], rest) for start in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], part) and _fits(names[1:], rest)
