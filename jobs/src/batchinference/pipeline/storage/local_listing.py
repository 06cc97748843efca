"""Lists local files: all of them, also those whose names are not valid UTF-8.

The paths are texts as in `file_names`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

import pyarrow.fs as pafs

from batchinference.file_names import escaped, os_path

_Identity = tuple[int, int]
"""The device and the inode of a directory."""


def info_of(path: str) -> pafs.FileInfo:
    """Return what is at a path. Links are followed. Raises OSError."""
    try:
        return _info(path, os.stat(os_path(path)))
    except (FileNotFoundError, NotADirectoryError):
        return _info(path, None)


def content_of(directory: str, *, recursive: bool) -> list[pafs.FileInfo]:
    """Return what is in a directory; nothing if it does not exist. Links are followed, unless they
    lead to a directory that contains them.

    The type is Unknown for such a link, and for what is neither a file nor a directory. It is
    NotFound for a link that leads nowhere. Raises OSError."""
    infos: list[pafs.FileInfo] = []
    directories = list(_top(os_path(directory)))
    while directories:
        path, above = directories.pop()
        for entry, status in _entries_of(path):
            info = _info(escaped(entry.path), status)
            if recursive and status is not None and stat.S_ISDIR(status.st_mode):
                if _identity(status) in above:
                    info = pafs.FileInfo(info.path, type=pafs.FileType.Unknown)
                else:
                    directories.append((entry.path, above | {_identity(status)}))
            infos.append(info)
    return infos


def _top(directory: str) -> Iterator[tuple[str, frozenset[_Identity]]]:
    """Yield a directory and its identity, if it exists."""
    with suppress(FileNotFoundError):
        yield directory, frozenset((_identity(os.stat(directory)),))


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _entries_of(directory: str) -> Iterator[tuple[os.DirEntry[str], os.stat_result | None]]:
    """Yield the entries of a directory with their status; None for a link that leads nowhere."""
    try:
        entries = os.scandir(directory)
    except FileNotFoundError:
        return  # it was deleted meanwhile
    with entries:
        for entry in entries:
            try:
                status = entry.stat()
            except OSError:
                if entry.is_symlink():
                    yield entry, None
                elif os.path.lexists(entry.path):
                    raise
            else:
                yield entry, status


def _info(path: str, status: os.stat_result | None) -> pafs.FileInfo:
    if status is None:
        return pafs.FileInfo(path, type=pafs.FileType.NotFound)
    mode, modified = status.st_mode, status.st_mtime_ns
    if stat.S_ISREG(mode):
        size = status.st_size
        return pafs.FileInfo(path, type=pafs.FileType.File, size=size, mtime_ns=modified)
    kind = pafs.FileType.Directory if stat.S_ISDIR(mode) else pafs.FileType.Unknown
    return pafs.FileInfo(path, type=kind, mtime_ns=modified)
