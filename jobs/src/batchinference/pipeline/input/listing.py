"""Lists the files of a job's input, and counts the files of directories that are not read."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import islice

import pyarrow as pa
import pyarrow.fs as pafs

from batchinference.file_names import escaped, os_path
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.file_rule import FileRule
from batchinference.pipeline.input.ignored_files import IgnoredFiles, Reason, similar_names
from batchinference.pipeline.input.path_files import PathFiles
from batchinference.pipeline.input.snapshot import InputSnapshot
from batchinference.pipeline.row_batch import MAX_FILES
from batchinference.pipeline.storage.location import Location, is_hidden
from batchinference.spec.addresses import scheme_of, unexpanded_variable
from batchinference.spec.file_extensions import COMPRESSIONS
from batchinference.spec.problems import did_you_mean
from batchinference.spec.read import ReadFiles
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.text import in_one_line

MAX_COMPARED_NAMES, SHOWN_ENDINGS, SHOWN_NAMES = 1000, 8, 5
_WINDOWS = re.compile(r"(^|/)[A-Za-z]:\\")
"""The beginning of a path of Windows, also after a directory to which it was taken as relative."""


def snapshot_input(
    paths: list[str],
    extensions: list[str] | None,
    storage: Storage = FROM_ENVIRONMENT,
    *,
    kind: type[ReadFiles] = ReadFiles,
    ignore_missing: bool = False,
    allow_empty: bool = False,
) -> InputSnapshot:
    """Return the files at these paths, sorted by path.

    A path that is listed several times selects its files several times. `extensions` filter the
    files in directories; None for the default of the format (see `FileRule`). A path of a single
    file is always included. Raises BadInput with the path if a path does not exist, contains no
    files to read or belongs to a table. With `ignore_missing`, raises BadInput only if all paths
    have no files. With `allow_empty`, directories and globs may have no files."""
    _check_one_store(paths)
    rule = FileRule.of(extensions, kind)
    found: dict[str, list[pafs.FileInfo]] = {}
    ignored: dict[str, Reason] = {}
    for path, times in Counter(paths).items():
        label = f"spec.read.paths[{paths.index(path)}]: '{path}'"
        files = _list(Location(path, storage), rule, label)
        if not files.read and not ignore_missing:
            _check_missing(files, label, allow_empty=allow_empty)
        ignored |= files.ignored
        for info in files.read:
            found[info.path] = max(found.get(info.path, []), [info] * times, key=len)
    if not found and not allow_empty:
        raise BadInput("spec.read.paths: none of the paths has files to read. Correct one of them")
    return InputSnapshot(Location(paths[0], storage), _table(found), _not_read(found, ignored))


def _not_read(found: Collection[str], ignored: Mapping[str, Reason]) -> IgnoredFiles:
    """Return what is known about ignored files. A file that one path ignores may be read by
    another one."""
    left_out = {path: reason for path, reason in ignored.items() if path not in found}
    return IgnoredFiles.of(left_out).with_similar(similar_names(found))


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


def list_existing(read: ReadFiles, storage: Storage) -> InputSnapshot:
    """Return the files that are at the paths of a job now, without deciding which of them it would
    read. Raises BadInput if a path cannot be listed."""
    return snapshot_input(read.paths, [], storage, ignore_missing=True, allow_empty=True)


def _list(address: Location, rule: FileRule, label: str) -> PathFiles:
    """Return the files at an address. Raises BadInput on OSError, and if the files are those of a
    table."""
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
    """Raise BadInput about a path without files, unless it may be empty. An object store has no
    empty directories, so any address in it may be one."""
    if allow_empty and (files.exists or not files.address.local):
        return
    if files.exists:
        raise BadInput(f"{label} {_describe_empty(files)}")
    fix = _near_name(files.address) or _other_path(files.address)
    hint = ", or set read.options.ignoreMissingPaths" if allow_empty else ""
    raise BadInput(f"{label} does not exist{fix}{hint}")


def _describe_empty(files: PathFiles) -> str:
    """Return the end of a message about a directory or a glob without files to read."""
    if (start := files.start) is not None and not files.ignored:
        held = f"; {_describe_directory(start)}" if start.local else ""
        return f"matches no file{held}. Correct it, or set read.allowEmpty if there may be none"
    endings = files.rule.endings
    plain = [ending for ending in endings if ending.rpartition(".")[2] not in COMPRESSIONS]
    named = ", ".join((plain or endings)[:SHOWN_ENDINGS])
    which = f"files that end in {named}{' ...'[: 4 * (len(plain) > SHOWN_ENDINGS)]}"
    ignored = IgnoredFiles.of(files.ignored).text
    return (
        f"holds no {which if endings else 'files'}{f' ({ignored})' if ignored else ''}. Choose "
        f"another path{', set read.format or read.options.fileExtensions' if endings else ''}, or "
        "set read.allowEmpty if it may be empty"
    )


def _other_path(address: Location) -> str:
    """Return the end of a message about a path that does not exist."""
    if _WINDOWS.search(address.path):
        return " on this machine. Write a path with '/' instead of a path of Windows"
    if unexpanded_variable(address.path):
        return ". Variables are not expanded. Begin the path with ~, or use a parameter of the job"
    return ". Correct the path"


def _describe_directory(directory: Location) -> str:
    """Return the first names in a local directory, as text."""
    if not os.path.isdir(os_path(directory.path)):
        return f"there is no directory '{directory.path}'"
    names = sorted(name for name in _local_names(directory.path) if not is_hidden(name))
    more = len(names) - SHOWN_NAMES
    shown = [*names[:SHOWN_NAMES], *([f"{more} more"] if more > 0 else [])]
    return f"'{directory.path}' holds {in_one_line(', '.join(shown)) or 'nothing'}"


def _local_names(directory: str) -> list[str]:
    """Return the names in a local directory, at most MAX_COMPARED_NAMES; empty if it cannot be
    listed."""
    with suppress(OSError), os.scandir(os_path(directory)) as entries:
        return [escaped(entry.name) for entry in islice(entries, MAX_COMPARED_NAMES)]
    return []


def _near_name(address: Location) -> str:
    """Return the end of a message that suggests a similar file of the same local directory."""
    directory, name = os.path.split(address.path)
    names = _local_names(directory) if address.local else []
    similar = [near for near in names if abs(len(near) - len(name)) <= 2 and near.isprintable()]
    return did_you_mean(name, similar)


def _table(found: Mapping[str, list[pafs.FileInfo]]) -> pa.Table:
    """Return the files, sorted by path. Raises BadInput if there are too many."""
    infos = [info for path in sorted(found) for info in found[path]]
    if len(infos) > MAX_FILES:
        raise BadInput(f"the input has {len(infos)} files; at most {MAX_FILES} are supported")
    columns = {
        "path": pa.array([info.path for info in infos], pa.string()),
        "size": pa.array([info.size or 0 for info in infos], pa.int64()),
        "modified": pa.array([info.mtime_ns for info in infos], pa.int64()),
    }
    return pa.table(columns)


def _check_one_store(paths: list[str]) -> None:
    schemes = sorted({scheme_of(path) for path in paths})
    if len(schemes) > 1:
        names = ["local paths" if scheme == "file" else f"{scheme}://" for scheme in schemes]
        raise BadInput(f"read.paths mixes {' and '.join(names)}: a job reads from one storage")
