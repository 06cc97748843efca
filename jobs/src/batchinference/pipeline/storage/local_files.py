"""Reads, writes, moves and deletes local files.

Others may write to a shared output directory and plant symbolic links there. So each function takes
a `root`: a directory below which no link is followed. The path below it is opened directory by
directory, so that a link cannot be planted between a check and its use. Without a root, links are
followed. Paths are texts as in `file_names`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import BinaryIO

from batchinference.file_names import os_path
from batchinference.pipeline.error_attribution import NO_SPACE
from batchinference.pipeline.errors import BadOutput

_OPEN_FOR_FSYNC = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FOR_PATHS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""Flags to open a directory for fsync, or only to open paths below it. The latter also works
without permission to list the directory, except where O_PATH does not exist."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}
"""What file systems without locks report."""


def read(path: str, root: str, limit: int | None = None) -> bytes:
    """Return the content of a regular file, or its first `limit` bytes.

    Anything else, such as a named pipe, could block forever and raises an OSError."""
    with opened(path, root) as file:
        return content_of(file, limit)


def content_of(file: BinaryIO, limit: int | None) -> bytes:
    """Return the content of an opened file, or its first `limit` bytes."""
    size = os.fstat(file.fileno()).st_size
    return file.read(size if limit is None else min(limit, size))


def opened(path: str, root: str) -> BinaryIO:
    """Open a regular file for reading and return it."""
    directory, name = os.path.split(os_path(path))
    with _named(path):
        if root:
            with _directory(directory, root) as parent:
                descriptor = _open(name, _READ, parent, path)
        else:
            descriptor = os.open(os_path(path), _READ)
    return _regular(descriptor, path)


def _regular(descriptor: int, path: str) -> BinaryIO:
    """Return an opened regular file. Anything else is closed, and raises an OSError."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(f"'{path}' is not a regular file")


def write(path: str, root: str, content: bytes | memoryview) -> None:
    """Write a whole file atomically, and the directories above it. Replaces an existing file."""
    directory, name = os.path.split(os_path(path))
    with _named(path), _directory(directory, root, make=True) as parent:
        with _temporary(name, parent, directory, content) as temporary:
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        os.fsync(parent)


@contextmanager
def _temporary(
    name: str, parent: int, directory: str, content: bytes | memoryview
) -> Iterator[str]:
    """Write a temporary file in the opened directory `parent`, whose path is `directory`, and yield
    its name. If the block raises, the file is deleted."""
    temporary = f".{name}-{uuid.uuid4().hex[:8]}.tmp"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # permissions follow the umask
        with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=parent), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise _full(directory, error.errno) from None
        raise


def update(path: str, root: str, change: Callable[[bytes | None], bytes]) -> None:
    """Replace the content of a file by `change` of it (of None if there is no file). No other
    process that calls this function changes the file in between, also over NFS, unless the file
    system has no locks.

    Raises BlockingIOError if another process is changing the file at this moment."""
    directory, name = os.path.split(os_path(path))
    with (
        _named(path),
        _directory(directory, root, make=True) as parent,
        _locked(f".{name}.lock", parent, path),
    ):
        try:
            # NFS asks the server which file has the name when it is opened
            with _regular(_open(name, _READ, parent, path), path) as file:
                before = file.read()
        except FileNotFoundError:
            before = None
        if (after := change(before)) != before:
            with _temporary(name, parent, directory, after) as temporary:
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            os.fsync(parent)


@contextmanager
def _locked(name: str, parent: int, path: str) -> Iterator[None]:
    """Hold the lock of a file, which is created, if its file system has locks."""
    flags = os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = _open(name, os.O_RDWR | flags, parent, path)
    except PermissionError:  # only NFS needs a file that can be written
        descriptor = _open(name, _READ, parent, path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    try:
        yield
    finally:
        os.close(descriptor)


def rename(path: str, root: str, target: str, target_root: str) -> bool:
    """Move a file to another path. Return False if the path is on another disk."""
    (directory, name), (other, new) = os.path.split(os_path(path)), os.path.split(os_path(target))
    with (
        _named(path),
        _directory(directory, root) as source,
        _directory(other, target_root, make=True) as destination,
    ):
        if root:
            _refuse_link(name, source, path)
        try:
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=destination)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
        os.fsync(destination)
    return True


def delete(path: str, root: str) -> None:
    """Delete a file. It is no error if the file does not exist."""
    directory, name = os.path.split(os_path(path))
    with suppress(FileNotFoundError), _named(path), _directory(directory, root) as parent:
        os.unlink(name, dir_fd=parent)


def delete_directory(path: str, root: str) -> None:
    """Delete a directory and its content. A link to a directory is not deleted."""
    directory, name = os.path.split(os_path(path))
    with suppress(FileNotFoundError), _directory(directory, root) as parent:
        shutil.rmtree(name, ignore_errors=True, dir_fd=parent)


def linked_part(path: str, root: str) -> str | None:
    """Return the first part of a path that is a symbolic link below `root`; None if none is."""
    if not root:
        return None
    steps = accumulate(_below(path, root), os.path.join, initial=root)
    next(steps)
    return next((step for step in steps if os.path.islink(os_path(step))), None)


class LinkedPath(BadOutput):
    """A path below the output is a symbolic link."""

    @classmethod
    def at(cls, path: str) -> LinkedPath:
        return cls(f"'{path}' leads out of the output by a symbolic link. Remove the link")


@contextmanager
def _directory(path: str, root: str, *, make: bool = False) -> Iterator[int]:
    """Open a directory and yield its descriptor. With `make`, create it if it does not exist, and
    allow fsync.

    Raises LinkedPath if a link would be followed below `root`."""
    path, root = os_path(path), os_path(root)
    parts = _below(path, root) if root else []
    current = root if parts else path
    if make:
        os.makedirs(current, exist_ok=True)
    last = _OPEN_FOR_FSYNC if make else _OPEN_FOR_PATHS
    descriptor = os.open(current, _OPEN_FOR_PATHS if parts else last)
    try:
        for left, part in zip(reversed(range(len(parts))), parts, strict=True):
            current = os.path.join(current, part)
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            inner = _open(part, _OPEN_FOR_PATHS if left else last, descriptor, current)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _below(path: str, root: str) -> list[str]:
    """Return the parts of a path below `root`; none if it is not below."""
    prefix = root.rstrip("/") + "/"
    return path.removeprefix(prefix).split("/") if path.startswith(prefix) else []


def _open(name: str, flags: int, parent: int, path: str) -> int:
    """Open a file or directory that is no symbolic link, and return its descriptor."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            _refuse_link(name, parent, path)
        raise


def _refuse_link(name: str, parent: int, path: str) -> None:
    if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        raise LinkedPath.at(path)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Make errors name the whole path instead of a name relative to a descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            error.filename = path
        raise


def _full(directory: str, number: int | None) -> OSError:
    free = shutil.disk_usage(directory).free >> 20
    return OSError(
        number,
        f"the disk of '{directory}' is full: {free} MB are free. Free some space, then run the "
        "same job again to resume",
    )
