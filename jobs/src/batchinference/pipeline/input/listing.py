"""Lists the files of a job's input: expands directories and globs, and leaves out hidden files."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.snapshot import InputSnapshot
from batchinference.pipeline.row_batch import MAX_FILES
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.storage.retry import with_retries
from batchinference.spec.addresses import scheme_of
from batchinference.spec.problems import did_you_mean
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage

MAX_COMPARED_NAMES = 1000
_GLOB = frozenset("*?[")
_WINDOWS = re.compile(r"(^|/)[A-Za-z]:\\")
"""The beginning of a path of Windows, also after a directory to which it was taken as relative."""
_HIDDEN = frozenset("._")
"""First characters in the names of hidden files and of marker files such as _SUCCESS."""


def snapshot_input(
    paths: list[str],
    extensions: list[str],
    storage: Storage = FROM_ENVIRONMENT,
    *,
    ignore_missing: bool = False,
) -> InputSnapshot:
    """Return the files at these paths, sorted by path.

    A path that is listed several times selects its files several times. `extensions` filter the
    files in directories. A path of a single file is always included.

    Raises BadInput with the path if a path does not exist or contains no files to read. With
    `ignore_missing`, raises BadInput only if this is true for all paths.
    """
    _check_one_store(paths)
    endings = tuple("." + extension.lower().removeprefix(".") for extension in extensions)
    found: dict[str, list[pafs.FileInfo]] = {}
    times = Counter(paths)
    for number, path in enumerate(paths):
        label = f"spec.read.paths[{number}]: '{path}'"
        address = Location(path, storage)
        files = _list(address, endings, label)
        if not files and not ignore_missing:
            raise BadInput(f"{label} {_missing_files(address, files, endings)}")
        for info in files or []:
            found[info.path] = max(found.get(info.path, []), [info] * times[path], key=len)
    if not found:
        raise BadInput("spec.read.paths: none of the paths has files to read. Correct one of them")
    infos = [info for path in sorted(found) for info in found[path]]
    if len(infos) > MAX_FILES:
        raise BadInput(f"the input has {len(infos)} files; at most {MAX_FILES} are supported")
    return InputSnapshot(Location(paths[0], storage), _table(infos))


def _missing_files(
    address: Location, files: list[pafs.FileInfo] | None, endings: tuple[str, ...]
) -> str:
    """Return why a path has no files. `files` is None if it does not exist."""
    if files is None:
        return f"does not exist{_near_name(address) or _other_path(address)}"
    if not endings:
        return "holds no files. Choose another path"
    return (
        f"holds no files that end in {', '.join(endings)}. Choose another path, or set read.format "
        "or read.options.file_extensions"
    )


def _other_path(address: Location) -> str:
    """Return the end of a message about a path that does not exist."""
    if _WINDOWS.search(address.path):
        return " on this machine. Write a path with '/' instead of a path of Windows"
    return ". Correct the path"


def _near_name(address: Location) -> str:
    """Return the end of a message that suggests a similar file of the same local directory."""
    path = Path(address.path)
    names: list[str] = []
    if address.local:
        with suppress(OSError):
            names = [entry.name for entry in islice(path.parent.iterdir(), MAX_COMPARED_NAMES)]
    similar = [
        name for name in names if abs(len(name) - len(path.name)) <= 2 and name.isprintable()
    ]
    return did_you_mean(path.name, similar)


def _table(infos: list[pafs.FileInfo]) -> pa.Table:
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


def _list(address: Location, endings: tuple[str, ...], label: str) -> list[pafs.FileInfo] | None:
    """Return the files at an address; None if it does not exist. Raises BadInput on OSError."""
    try:
        info = address.info()
        if info.type == pafs.FileType.NotFound:
            if _GLOB.intersection(address.path):
                return _expand(address, endings)
            return None
        if info.type == pafs.FileType.Directory:
            return _files_below(address, endings)
    except OSError as error:
        raise BadInput(f"{label} cannot be listed: {error}") from error
    if info.type != pafs.FileType.File:  # a named pipe would block forever
        raise BadInput(f"{label} is not a regular file")
    return [info]


def _expand(address: Location, endings: tuple[str, ...]) -> list[pafs.FileInfo]:
    from fsspec.implementations.arrow import ArrowFSWrapper  # workers expand no globs

    found = with_retries(lambda: ArrowFSWrapper(address.filesystem).glob(address.path))
    matches = [path for path in found if not _is_hidden(path, address.path)]
    infos = address.filesystem.get_file_info(matches) if matches else []
    files = []
    for info in infos:
        if info.type == pafs.FileType.Directory:
            files += _files_below(address.at(info.path), endings)
        elif info.type == pafs.FileType.File:
            files.append(info)
    return files


def _is_hidden(path: str, pattern: str) -> bool:
    """Return whether a matched path has a hidden part that its pattern does not match explicitly.

    Patterns such as `.*` or `_part*` match hidden parts explicitly."""
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if _GLOB.intersection(part))
    named = {part[:1] for part in parts[fixed:]}
    return any(part[:1] in _HIDDEN - named for part in path.split("/")[fixed:])


def _files_below(directory: Location, endings: tuple[str, ...]) -> list[pafs.FileInfo]:
    """Return the files of a directory tree, except hidden ones."""
    root = directory.path.rstrip("/") + "/"
    return [
        info
        for info in directory.files(recursive=True)
        if not any(part[:1] in _HIDDEN for part in info.path[len(root) :].split("/"))
        and (not endings or base_name(info.path).lower().endswith(endings))
    ]
