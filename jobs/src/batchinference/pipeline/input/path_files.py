"""Finds the files at one path, which is a file, a directory or a glob."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import pyarrow.fs as pafs

from batchinference.pipeline.input.file_rule import FileRule
from batchinference.pipeline.input.ignored_files import Reason
from batchinference.pipeline.input.table_directories import (
    TableDirectory,
    tables_above,
    tables_in,
)
from batchinference.pipeline.storage.location import Location, base_name, is_hidden

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


@dataclass
class PathFiles:
    """The files at `address`: `read` are those to read, and `ignored` has the reason of each file
    that is not read, by path. `tables` are the tables to which files belong. `exists` is False if
    there is nothing at the address, and it is no glob."""

    address: Location
    rule: FileRule
    exists: bool = field(default=True, init=False)
    start: Location | None = field(default=None, init=False)
    """The directory above the first pattern of a glob."""
    read: list[pafs.FileInfo] = field(default_factory=list, init=False)
    ignored: dict[str, Reason] = field(default_factory=dict, init=False)
    tables: list[TableDirectory] = field(default_factory=list, init=False)
    _undecided: list[pafs.FileInfo] = field(default_factory=list, init=False)

    @classmethod
    def of(cls, address: Location, rule: FileRule) -> PathFiles:
        """Return the files at an address. Raises OSError."""
        files, info = cls(address, rule), address.info()
        match info.type:
            case pafs.FileType.NotFound if SPECIAL.intersection(address.path):
                files._add_matches()
            case pafs.FileType.NotFound:
                files.exists = False
            case pafs.FileType.Directory:
                content = address.content(recursive=True)
                files._add_tables(content, address)
                files._add_below(address.path, content)
            case pafs.FileType.File:
                files.read.append(info)
            case _:  # a named pipe would block forever
                files.ignored[address.path] = Reason.SPECIAL
        files._examine()
        return files

    def _add_matches(self) -> None:
        glob = Glob(self.address)
        for info in glob.matches():
            visible = _visible_part(info.path, self.address.path)
            if info.type == pafs.FileType.Directory:
                content = self.address.at(info.path).content(recursive=True)
                self._add_tables(content, self.address.at(info.path))
                self._add_below(visible, content)
            elif visible == info.path and info.type == pafs.FileType.File:
                self.read.append(info)
            else:
                self._add_below(visible, [info])
        self.start = glob.start
        self._add_tables(glob.listed, glob.start)

    def _add_below(self, directory: str, infos: Iterable[pafs.FileInfo]) -> None:
        """Add the files of a directory, whose path decides which names below it are hidden."""
        start = len(directory.rstrip("/")) + 1
        for info in infos:
            if info.type == pafs.FileType.Directory:
                continue
            decision = self.rule.decide(info, info.path[start:])
            if decision == "read":
                self.read.append(info)
            elif decision == "examine":
                self._undecided.append(info)
            else:
                self.ignored[info.path] = decision

    def _add_tables(self, infos: list[pafs.FileInfo], directory: Location) -> None:
        if self.rule.kind.READS_TABLES:
            self.tables += [*tables_in(infos, directory), *tables_above(directory)]

    def _examine(self) -> None:
        """Decide by their content whether files are read."""
        files = {self.address.at(info.path): info for info in self._undecided}
        for file, decision in self.rule.examine(list(files)):
            if decision == "read":
                self.read.append(files[file])
            else:
                self.ignored[file.path] = decision


def _visible_part(path: str, pattern: str) -> str:
    """Return the path that matches a pattern up to a hidden part that the pattern does not match
    explicitly. Patterns such as `.*` or `_part*` match hidden parts explicitly."""
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if SPECIAL.intersection(part))
    named = {part[:1] for part in parts[fixed:]}
    names = path.split("/")
    hidden = (
        n for n in range(fixed, len(names)) if is_hidden(names[n]) and names[n][0] not in named
    )
    return "/".join(names[: next(hidden, len(names))])
