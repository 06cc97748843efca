"""Lists the input files of a job, and the files in input directories that it does not read."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

import pyarrow.fs as pafs

from batchinference.file_names import escaped, os_path
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.file_rule import FileRule
from batchinference.pipeline.input.ignored_files import IgnoredFiles, Reason, similar_names
from batchinference.pipeline.input.input_snapshot import InputSnapshot, file_table
from batchinference.pipeline.storage.location import Location, base_name, is_hidden
from batchinference.spec.addresses import fix_of_variable, is_windows_path, reference_in, scheme_of
from batchinference.spec.file_extensions import COMPRESSIONS
from batchinference.spec.problems import did_you_mean
from batchinference.spec.read import ReadFiles
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.text import in_one_line

MAX_COMPARED_NAMES, SHOWN_ENDINGS, SHOWN_NAMES = 1000, 8, 5

# The directory of a table also has files of earlier versions, and deleted rows. Only its metadata
# says which files and rows are valid, so its files must not be read as plain files.
_EXPORT = (
    "Its files also hold deleted rows, so they are not read. Export a snapshot of the table as "
    "Parquet files and read these, or name single files in read.paths to read them as they are"
)
_READ_AS = "Set read.format to {}, and read.path to this directory"
_METADATA = {
    "_delta_log": ("Delta Lake", re.compile(r".*\.(json|parquet)"), _READ_AS.format("delta")),
    "metadata": ("Iceberg", re.compile(r".*\.metadata\.json(\.gz)?"), _EXPORT),
    ".hoodie": ("Hudi", re.compile(r"hoodie\.properties|.*\.(commit|deltacommit)"), _EXPORT),
    "_versions": ("Lance", re.compile(r".*\.manifest"), _READ_AS.format("lance")),
}
"""The table format, the names of its metadata files, and the fix, by metadata directory."""


@dataclass(frozen=True)
class TableDirectory:
    """The directory of a table, the name of its format, and how to read it."""

    path: str
    format: str
    fix: str

    def __str__(self) -> str:
        return f"'{self.path}' is a table of the format {self.format}. {self.fix}"


def tables_in(infos: Sequence[pafs.FileInfo], address: Location) -> Iterator[TableDirectory]:
    """Yield the tables whose metadata is in `infos`, a listing at `address`. If the listing has a
    metadata directory without the files in it, this function lists these files."""
    listed = {os.path.dirname(info.path) for info in infos}
    for info in infos:
        if info.type == pafs.FileType.File:
            yield from _table_of(info.path)
        elif base_name(info.path) in _METADATA and info.path not in listed:
            for file in address.at(info.path).files():
                yield from _table_of(file.path)


def _table_of(file: str) -> Iterator[TableDirectory]:
    """Yield the table whose metadata includes a file; nothing if the file is not metadata."""
    directory, name = os.path.split(file)
    table, parent = os.path.split(directory)
    if parent in _METADATA:
        table_format, names, fix = _METADATA[parent]
        if names.fullmatch(name):
            yield TableDirectory(table, table_format, fix)


def tables_above(directory: Location) -> Iterator[TableDirectory]:
    """Yield the tables above a directory if its name is `data`, or a partition (`key=value`)."""
    path, name = os.path.split(directory.path)
    while path and (name == "data" or "=" in name):
        infos = [pafs.FileInfo(f"{path}/{name}", pafs.FileType.Directory) for name in _METADATA]
        with suppress(OSError):  # directories above the input may be unreadable
            yield from tables_in(infos, directory)
        path, name = os.path.split(path)


GLOB_CHARACTERS = frozenset("*?[")
"""The characters that make a path a glob."""
_ANY_DEPTH = "**"


@dataclass
class Glob:
    """Finds the files and directories that a glob matches. `matches` adds all that it lists to
    `listed`, and sets `start` to the directory above the first pattern (None without patterns)."""

    address: Location
    listed: list[pafs.FileInfo] = field(default_factory=list, init=False)
    start: Location | None = field(default=None, init=False)

    def matches(self) -> list[pafs.FileInfo]:
        """Return the files and directories that match, without repetitions. Before all patterns, a
        part such as `[x]` is a name if a directory has this name. Raises OSError."""
        parts = self.address.path.split("/")
        fixed = next((at for at in range(len(parts)) if self._is_pattern(parts[: at + 1])), None)
        if fixed is None:
            return []
        self.start = self.address.at("/".join(parts[:fixed]) or "/")
        return list(self._matches_below(self.start, parts[fixed:]))

    def _is_pattern(self, parts: Sequence[str]) -> bool:
        """Return whether the last of these parts is a pattern, not the name of a directory."""
        characters = GLOB_CHARACTERS.intersection(parts[-1])
        if characters != {"["}:
            return bool(characters)
        return not _is_directory(self.address.at("/".join(parts)).info())

    def _matches_below(self, directory: Location, parts: Sequence[str]) -> Iterator[pafs.FileInfo]:
        part, *rest = parts
        if part == _ANY_DEPTH:
            yield from self._at_any_depth(directory, parts)
            return
        for info in self._content(directory):
            if fnmatchcase(base_name(info.path), part):
                if not rest:
                    yield info
                elif _is_directory(info):
                    yield from self._matches_below(directory.at(info.path), rest)

    def _at_any_depth(self, directory: Location, parts: Sequence[str]) -> Iterator[pafs.FileInfo]:
        for info in self._content(directory, recursive=True):
            # leave out directories that match a last `**`: the files in them match, too
            if not (parts[-1] == _ANY_DEPTH and _is_directory(info)):
                names = directory.relative(info.path).split("/")
                if _fits(names, parts):
                    yield info

    def _content(self, directory: Location, *, recursive: bool = False) -> list[pafs.FileInfo]:
        content = directory.content(recursive=recursive)
        self.listed += content
        return content


def _is_directory(info: pafs.FileInfo) -> bool:
    return bool(info.type == pafs.FileType.Directory)


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether the names in a relative path match the parts of a pattern."""
    if not parts:
        return not names
    part, *rest = parts
    if part == _ANY_DEPTH:
        return any(_fits(names[start:], rest) for start in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], part) and _fits(names[1:], rest)


@dataclass
class PathFiles:
    """The files at `address`. `read` are the files to read. `ignored` maps the path of each other
    file to the reason why it is not read. `tables` are the tables that have some of the files.
    `exists` is False if the address is not a glob, and no file or directory is there."""

    address: Location
    rule: FileRule
    exists: bool = field(default=True, init=False)
    start: Location | None = field(default=None, init=False)
    """The directory above the first pattern, if the address is a glob."""
    read: list[pafs.FileInfo] = field(default_factory=list, init=False)
    ignored: dict[str, Reason] = field(default_factory=dict, init=False)
    tables: list[TableDirectory] = field(default_factory=list, init=False)
    _to_examine: list[pafs.FileInfo] = field(default_factory=list, init=False)

    @classmethod
    def of(cls, address: Location, rule: FileRule) -> PathFiles:
        """Return the files at an address. Raises OSError."""
        files, info = cls(address, rule), address.info()
        match info.type:
            case pafs.FileType.NotFound if GLOB_CHARACTERS.intersection(address.path):
                files._add_matches()
            case pafs.FileType.NotFound:
                files.exists = False
            case pafs.FileType.Directory:
                content = address.content(recursive=True)
                files._add_tables(content, address)
                files._add_below(address.path, content)
            case pafs.FileType.File:
                files.read.append(info)
            case _:  # such as a named pipe, which could block forever
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
        self.start, self.exists = glob.start, glob.start is not None
        if glob.start is not None:
            self._add_tables(glob.listed, glob.start)

    def _add_below(self, directory: str, infos: Iterable[pafs.FileInfo]) -> None:
        """Add files below a directory. Only names below the directory can make a file hidden."""
        start = len(directory.rstrip("/")) + 1
        for info in infos:
            if info.type == pafs.FileType.Directory:
                continue
            decision = self.rule.decide(info, info.path[start:])
            if decision == "read":
                self.read.append(info)
            elif decision == "examine":
                self._to_examine.append(info)
            else:
                self.ignored[info.path] = decision

    def _add_tables(self, infos: list[pafs.FileInfo], directory: Location) -> None:
        if self.rule.kind.READS_TABLES:
            self.tables += [*tables_in(infos, directory), *tables_above(directory)]

    def _examine(self) -> None:
        """Decide about each file in `_to_examine` by the content of the file."""
        files = {self.address.at(info.path): info for info in self._to_examine}
        for file, decision in self.rule.examine(list(files)):
            if decision == "read":
                self.read.append(files[file])
            else:
                self.ignored[file.path] = decision


def _visible_part(path: str, pattern: str) -> str:
    """Return a path up to its first hidden part that the pattern does not ask for. A pattern such
    as `.*` or `_part*` asks for hidden parts that begin with the same character. For the pattern
    `in/*/*`, the result for `in/.cache/a` is `in`."""
    parts = pattern.split("/")
    fixed = next(at for at, part in enumerate(parts) if GLOB_CHARACTERS.intersection(part))
    asked_for = {part[:1] for part in parts[fixed:]}
    names = path.split("/")
    hidden = (
        n for n in range(fixed, len(names)) if is_hidden(names[n]) and names[n][0] not in asked_for
    )
    return "/".join(names[: next(hidden, len(names))])


def snapshot_input(
    paths: list[str],
    extensions: list[str] | None,
    storage: Storage = FROM_ENVIRONMENT,
    *,
    kind: type[ReadFiles] = ReadFiles,
    ignore_missing: bool = False,
    allow_empty: bool = False,
) -> InputSnapshot:
    """List the files at these paths. Return an input snapshot, sorted by path.

    The files of a repeated path are repeated. A path of a file is always read; in directories,
    `extensions` selects files (see `FileRule`). Raises BadInput if paths are in several storages,
    or if a path is missing, unreadable, empty or in a table. With `ignore_missing`, some paths may
    be missing or empty. With `allow_empty`, all paths may be empty."""
    _check_one_store(paths)
    rule = FileRule.of(extensions, kind)
    by_path: dict[str, list[pafs.FileInfo]] = {}
    ignored: dict[str, Reason] = {}
    for path, repeats in Counter(paths).items():
        label = f"spec.read.paths[{paths.index(path)}]: '{path}'"
        files = _list(Location(path, storage), rule, label)
        if not files.read and not ignore_missing:
            _check_missing(files, label, allow_empty=allow_empty)
        ignored |= files.ignored
        for info in files.read:
            by_path[info.path] = max(by_path.get(info.path, []), [info] * repeats, key=len)
    if not by_path and not allow_empty:
        raise BadInput("spec.read.paths: none of the paths has files to read. Correct one of them")
    # a file that one path ignores may be read because of another path
    not_read = IgnoredFiles.of({path: ignored[path] for path in ignored.keys() - by_path.keys()})
    infos = [info for path in sorted(by_path) for info in by_path[path]]
    table = file_table([(info.path, info.size or 0, info.mtime_ns) for info in infos])
    similar = similar_names(by_path)
    return InputSnapshot(Location(paths[0], storage), table, not_read.with_similar(similar))


def list_input(read: ReadFiles) -> InputSnapshot:
    """Return the files that a job reads. Raises BadInput as `snapshot_input` does."""
    options = read.options
    return snapshot_input(
        read.paths,
        options.file_extensions,
        read.storage,
        kind=type(read),
        ignore_missing=options.ignore_missing_paths,
        allow_empty=read.allow_empty,
    )


def list_existing(storage: Storage, *paths: str) -> InputSnapshot:
    """Return the files at these paths, with any extension, except for hidden files. Missing paths
    are not an error. Raises BadInput if a path cannot be listed."""
    return snapshot_input([*paths], [], storage, ignore_missing=True, allow_empty=True)


def _list(address: Location, rule: FileRule, label: str) -> PathFiles:
    """Return the files at an address. Raises BadInput if they cannot be listed or belong to a
    table, or if the address is a special file. The message begins with `label`."""
    try:
        files = PathFiles.of(address, rule)
    except OSError as error:
        raise BadInput(f"{label} cannot be listed: {error}") from error
    if files.ignored.get(address.path) is Reason.SPECIAL:
        raise BadInput(f"{label} is not a regular file")
    for table in files.tables:
        if not files.read or any(info.path.startswith(f"{table.path}/") for info in files.read):
            raise BadInput(f"{label}: {table}")
    return files


def _check_missing(files: PathFiles, label: str, *, allow_empty: bool) -> None:
    """Raise BadInput about a path without files to read. `allow_empty` allows empty directories. In
    an object store, which has no empty directories, it also allows missing directories."""
    if allow_empty and (files.exists or not files.address.local):
        return
    if files.exists:
        raise BadInput(f"{label} {_describe_empty(files)}")
    fix = _near_name(files.address) or _fix_of_path(files.address)
    hint = ", or set read.options.ignoreMissingPaths" if allow_empty else ""
    raise BadInput(f"{label} does not exist{fix}{hint}")


def _describe_empty(files: PathFiles) -> str:
    """Return the end of a message about a directory or a glob without files to read."""
    if (start := files.start) is not None and not files.ignored:
        content = f"; {_describe_directory(start)}" if start.local else ""
        return f"matches no file{content}. Correct it, or set read.allowEmpty if there may be none"
    endings = files.rule.endings
    plain = [ending for ending in endings if ending.rpartition(".")[2] not in COMPRESSIONS]
    named = ", ".join((plain or endings)[:SHOWN_ENDINGS])
    more = " ..." if len(plain) > SHOWN_ENDINGS else ""
    which = f"files that end in {named}{more}" if endings else "files"
    ignored = IgnoredFiles.of(files.ignored).text
    return (
        f"holds no {which}{f' ({ignored})' if ignored else ''}. Choose "
        f"another path{', set read.format or read.options.fileExtensions' if endings else ''}, or "
        "set read.allowEmpty if it may be empty"
    )


def _fix_of_path(address: Location) -> str:
    """Return the end of a message about a path that does not exist."""
    if is_windows_path(address.path):
        return " on this machine. Write a path with '/' and no drive instead of a path of Windows"
    if "\\" in address.path:
        return ". Write '/' instead of '\\'"
    if "," in address.path:
        return ". Write each path as an item of the list"
    if variable := reference_in(address.path):
        return f". {variable} is not expanded. {fix_of_variable(variable)}"
    return _missing_parent(address) or ". Correct the path"


def _missing_parent(address: Location) -> str:
    """Return the end of a message: the first missing directory above a local path, if any."""
    directory = Path(os_path(address.path)).parent if address.local else Path("/")
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    if not missing:
        return ""
    first = Location(str(missing[-1]))
    return f": there is no directory '{first.path}'{_near_name(first) or '. Correct the path'}"


def _describe_directory(directory: Location) -> str:
    """Return a text that lists up to SHOWN_NAMES names in a local directory."""
    if not os.path.isdir(os_path(directory.path)):
        return f"there is no directory '{directory.path}'"
    names = sorted(name for name in _local_names(directory.path) if not is_hidden(name))
    more = len(names) - SHOWN_NAMES
    shown = [*names[:SHOWN_NAMES], *([f"{more} more"] if more > 0 else [])]
    return f"'{directory.path}' holds {in_one_line(', '.join(shown)) or 'nothing'}"


def _local_names(directory: str) -> list[str]:
    """Return at most MAX_COMPARED_NAMES names in a local directory; empty on errors."""
    with suppress(OSError), os.scandir(os_path(directory)) as entries:
        return [escaped(entry.name) for entry in islice(entries, MAX_COMPARED_NAMES)]
    return []


def _near_name(address: Location) -> str:
    """Return the end of a message: a similar name in the same local directory, if any."""
    directory, name = os.path.split(address.path)
    names = _local_names(directory) if address.local else []
    similar = [near for near in names if abs(len(near) - len(name)) <= 2 and near.isprintable()]
    return did_you_mean(name, similar)


def _check_one_store(paths: list[str]) -> None:
    schemes = sorted({scheme_of(path) for path in paths})
    if len(schemes) > 1:
        names = ["local paths" if scheme == "file" else f"{scheme}://" for scheme in schemes]
        raise BadInput(f"read.paths mixes {' and '.join(names)}: a job reads from one storage")
