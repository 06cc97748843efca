"""Reads, lists, writes, moves and deletes local files. Symbolic links cannot lead out of outputs
and inputs. Paths are text as in `file_names`, so names need not be UTF-8.

Outputs: other users may plant links in a shared output directory. So functions take a `root`, a
directory below which no link is followed. The path below `root` is opened directory by directory,
so nobody can plant a link between a check and its use. If `root` is empty, links are followed.

Inputs: other users may plant links in an input directory, to files that only the job can read.
`contained` therefore opens only files whose real path is in certain directories."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import lru_cache
from itertools import accumulate
from typing import Any, BinaryIO, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

from batchinference.file_names import escaped, os_path
from batchinference.pipeline.error_classification import NO_SPACE
from batchinference.pipeline.errors import BadOutput

_OPEN_FOR_FSYNC = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FOR_PATHS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""Flags to open a directory for fsync, and to open it only as the parent of other paths. O_PATH
does not need the permission to list the directory."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}
"""The errors of file systems without locks."""
_ALWAYS = nullcontext()


def read(path: str, root: str, limit: int | None = None, allowed: tuple[str, ...] = ()) -> bytes:
    """Return the content of a regular file, or its first `limit` bytes. Raises OSError for other
    files, because a named pipe, for example, could block forever. Also raises OSError for files
    outside of the directories `allowed`, if there are any (see `contained`)."""
    with open_regular(path, root) as file:
        if allowed:
            _check_allowed(path, file, allowed)
        size = os.fstat(file.fileno()).st_size
        return file.read(size if limit is None else min(limit, size))


def open_regular(path: str, root: str) -> BinaryIO:
    """Open a regular file for reading and return it."""
    directory, name = os.path.split(os_path(path))
    with _full_path_in_errors(path):
        if root:
            with _directory(directory, root) as parent:
                descriptor = _open(name, _READ, parent, path)
        else:
            descriptor = os.open(os_path(path), _READ)
    return _regular(descriptor, path)


def _regular(descriptor: int, path: str) -> BinaryIO:
    """Return the file of a descriptor. If it is not a regular file, close it and raise OSError."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(f"'{path}' is not a regular file")


def write(
    path: str,
    root: str,
    content: bytes | memoryview,
    allowed: AbstractContextManager[None] = _ALWAYS,
) -> None:
    """Write a whole file atomically, and create its directories. An existing file is replaced.

    The context `allowed` may raise an exception if the file must not appear. It is entered only
    when the content is on the disk, because writing a large file takes long."""
    directory, name = os.path.split(os_path(path))
    with _full_path_in_errors(path), _directory(directory, root, make=True) as parent:
        _replace(name, parent, directory, content, allowed)


def _replace(
    name: str,
    parent: int,
    directory: str,
    content: bytes | memoryview,
    allowed: AbstractContextManager[None] = _ALWAYS,
) -> None:
    """Write a temporary file in the opened directory `parent`, and rename it in the context
    `allowed`. After an error, delete the temporary file. `directory` is the path of `parent`."""
    temporary = f".{name}-{uuid.uuid4().hex[:8]}.tmp"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # permissions follow the umask
        with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=parent), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with allowed:
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            free = shutil.disk_usage(directory).free >> 20
            raise OSError(
                error.errno,
                f"the disk of '{directory}' is full: {free} MB are free. Free some space, then run "
                "the same job again to resume",
            ) from None
        raise
    os.fsync(parent)


def update(path: str, root: str, change: Callable[[bytes | None], bytes]) -> None:
    """Call `change` with the content of a file (None if there is no file), and write its result. If
    the file system has locks, other callers of this function cannot change the file meanwhile.

    Raises BlockingIOError if another process holds the lock."""
    directory, name = os.path.split(os_path(path))
    with (
        _full_path_in_errors(path),
        _directory(directory, root, make=True) as parent,
        _locked(f".{name}.lock", parent, path),
    ):
        try:
            # opening makes an NFS client ask the server for the current file
            with _regular(_open(name, _READ, parent, path), path) as file:
                before = file.read()
        except FileNotFoundError:
            before = None
        if (after := change(before)) != before:
            _replace(name, parent, directory, after)


@contextmanager
def locked(path: str, root: str) -> Iterator[None]:
    """Hold the lock that `update` needs to change a file. So nobody changes the file during the
    block. Raises BlockingIOError if another process holds the lock."""
    directory, name = os.path.split(os_path(path))
    with ExitStack() as entered:
        with _full_path_in_errors(path):
            parent = entered.enter_context(_directory(directory, root, make=True))
            entered.enter_context(_locked(f".{name}.lock", parent, path))
        yield


@contextmanager
def _locked(name: str, parent: int, path: str) -> Iterator[None]:
    """Create the lock file `name` and hold its lock, if the file system has locks."""
    flags = os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = _open(name, os.O_RDWR | flags, parent, path)
    except PermissionError as error:  # only NFS needs write permission for a lock
        try:
            descriptor = _open(name, _READ, parent, path)
        except FileNotFoundError:
            raise error from None  # no permission to create the lock file
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BlockingIOError(
            errno.EAGAIN, "another process is changing the output. If it hangs, end it", path
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    try:
        yield
    finally:
        with suppress(OSError):  # a process that was forked meanwhile has a copy of the descriptor
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def rename(path: str, root: str, target: str, target_root: str) -> bool:
    """Move a file to another path, and return True; False if the paths are on different disks."""
    (directory, name), (other, new) = os.path.split(os_path(path)), os.path.split(os_path(target))
    with (
        _full_path_in_errors(path),
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
    """Delete a file. It is not an error if the file does not exist."""
    directory, name = os.path.split(os_path(path))
    with (
        suppress(FileNotFoundError),
        _full_path_in_errors(path),
        _directory(directory, root) as parent,
    ):
        os.unlink(name, dir_fd=parent)


def delete_directory(path: str, root: str) -> None:
    """Delete a directory and its content as far as possible. A link is not deleted."""
    directory, name = os.path.split(os_path(path))
    with suppress(FileNotFoundError), _directory(directory, root) as parent:
        shutil.rmtree(name, ignore_errors=True, dir_fd=parent)


def linked_part(path: str, root: str) -> str | None:
    """Return the path of the first symbolic link in `path` below `root`; None if there is none."""
    if not root:
        return None
    steps = accumulate(_below(path, root), os.path.join, initial=root)
    next(steps)
    return next((step for step in steps if os.path.islink(os_path(step))), None)


class LinkedPath(BadOutput):
    """A path below the output is a symbolic link."""

    @classmethod
    def at(cls, path: str) -> LinkedPath:
        """Return the error for the symbolic link at `path`."""
        return cls(f"'{path}' leads out of the output by a symbolic link. Remove the link")


@contextmanager
def _directory(path: str, root: str, *, make: bool = False) -> Iterator[int]:
    """Open a directory and yield its descriptor. With `make`, create it if it is missing, and make
    the descriptor usable for fsync.

    Raises LinkedPath if there is a link below `root`."""
    path, root = os_path(path), os_path(root)
    parts = _below(path, root) if root else []
    current = root if parts else path
    if make:
        os.makedirs(current, exist_ok=True)
    last = _OPEN_FOR_FSYNC if make else _OPEN_FOR_PATHS
    descriptor = os.open(current, _OPEN_FOR_PATHS if parts else last)
    try:
        for remaining, part in zip(reversed(range(len(parts))), parts, strict=True):
            current = os.path.join(current, part)
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            inner = _open(part, _OPEN_FOR_PATHS if remaining else last, descriptor, current)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _below(path: str, root: str) -> list[str]:
    """Return the parts of a path below `root`; an empty list if the path is not below `root`."""
    prefix = root.rstrip("/") + "/"
    return path.removeprefix(prefix).split("/") if path.startswith(prefix) else []


def _open(name: str, flags: int, parent: int, path: str) -> int:
    """Open a file or directory, and return its descriptor. Raises LinkedPath if it is a link."""
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
def _full_path_in_errors(path: str) -> Iterator[None]:
    """Put the whole path into errors, instead of a name relative to a descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            error.filename = path
        raise


_Identity = tuple[int, int]
"""The device and the inode of a directory, which identify it."""


def info_of(path: str) -> pafs.FileInfo:
    """Return the info of a path; the type is NotFound if it does not exist. Follows links."""
    try:
        return _info(path, os.stat(os_path(path)))
    except (FileNotFoundError, NotADirectoryError):
        return _info(path, None)


def entries_in(directory: str, *, recursive: bool) -> list[pafs.FileInfo]:
    """Return the entries of a directory; none if it does not exist. Links are followed. With
    `recursive`, a link to a directory above it is not followed.

    Links that are not followed, and entries other than files and directories, have the type
    Unknown. A broken link has the type NotFound. Raises OSError."""
    infos: list[pafs.FileInfo] = []
    directories: list[tuple[str, frozenset[_Identity]]] = []
    with suppress(FileNotFoundError):
        top = os_path(directory)
        directories.append((top, frozenset((_identity(os.stat(top)),))))
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


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _entries_of(directory: str) -> Iterator[tuple[os.DirEntry[str], os.stat_result | None]]:
    """Yield the entries of a directory with their status, which is None for a broken link."""
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


class _Handler(pafs.FileSystemHandler):  # type: ignore[misc]
    """A file system for reading that opens only files in `allowed` or below directories in it."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed
        self._local = pafs.LocalFileSystem()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and self._allowed == other._allowed

    def __hash__(self) -> int:
        return hash(self._allowed)

    def get_type_name(self) -> str:
        return "contained"

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [info_of(path) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        return entries_in(selector.base_dir, recursive=selector.recursive)

    def normalize_path(self, path: str) -> str:
        return str(self._local.normalize_path(path))

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._opened(path, self._local.open_input_file)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._opened(path, lambda file: self._local.open_input_stream(file, None))

    def _opened(self, path: str, open_: Any) -> pa.NativeFile:
        """Open a file, and then check its real path. An earlier check could become wrong."""
        with open_regular(path, root="") as file:
            _check_allowed(path, file, self._allowed)
            descriptor = f"/proc/self/fd/{file.fileno()}"
            return open_(descriptor if os.path.exists(descriptor) else os_path(path))

    def _refuse(self, *_: object) -> NoReturn:
        raise PermissionError("this file system is for reading")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


def contained(allowed: tuple[str, ...]) -> pafs.FileSystem:
    """Return a local file system that opens only the files `allowed`, and files below directories
    in `allowed`. Other files raise OSError without errno, also if a link leads to them."""
    return pafs.PyFileSystem(_Handler(allowed))


def _check_allowed(path: str, file: BinaryIO, allowed: tuple[str, ...]) -> None:
    """Raise OSError if the real path of an opened file is not in `allowed`."""
    try:
        real = os.readlink(f"/proc/self/fd/{file.fileno()}")
    except OSError:  # not on Linux
        real = os.path.realpath(os_path(path))
    named = _paths(allowed)
    # resolving links in `allowed` is slow, and rarely needed
    if not (_is_in(real, named) or _is_in(real, {os.path.realpath(folder) for folder in named})):
        raise OSError(
            f"'{path}' is read through a symbolic link, and the file is outside of "
            "read.paths. Add a directory that holds both to read.paths"
        )


@lru_cache(maxsize=8)
def _paths(allowed: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(os_path, allowed))


def _is_in(path: str, paths: Collection[str]) -> bool:
    """Return whether a path, or a directory above it, is in `paths`."""
    while path not in paths:
        path, below = os.path.dirname(path), path
        if path == below:
            return False
    return True
