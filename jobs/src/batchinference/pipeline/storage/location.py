"""Files and directories at an address: a local path, or an address in an object store.

Writes are atomic: one rename on a local disk (see `local_files`), one put in a store."""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.fs as pafs

from batchinference.file_names import escaped, os_path
from batchinference.pipeline.storage import local_files
from batchinference.pipeline.storage.conditional_put import (
    Change,
    Check,
    put_object,
    update_object,
)
from batchinference.pipeline.storage.object_stores import object_store, storage_options
from batchinference.pipeline.storage.retry import with_retries
from batchinference.spec.addresses import is_local, local_path, scheme_of
from batchinference.spec.file_extensions import COMPRESSIONS
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage

DELETE_THREADS = 16
_GLOB = re.compile(r"(?<=/)[^/]*[*?[].*")
"""Matches the parts of a glob from the first part with a wildcard to the end."""
_REMNANT = re.compile(r"^\.(.+?)(?:-[a-z0-9_]{8}\.tmp|\.lock)$")


@dataclass(frozen=True)
class Guard:
    """The condition of a change. `check` reads `file`, and raises an exception if the change is not
    allowed. Other processes change `file` only by `Location.update`."""

    file: Location
    check: Check

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Check before the block. A local `file` is locked, so nobody changes it in the block."""
        with ExitStack() as entered:
            if self.file.local:
                path, root = self.file.path, self.file.root
                with_retries(lambda: entered.enter_context(local_files.locked(path, root)))
            self.check()
            yield


@dataclass(frozen=True)
class Location:
    """An address in a storage system. Picklable and cheap.

    - `uri`: the address as the user has written it
    - `storage`: the settings of the object store
    - `root`: a local directory below which symbolic links raise BadOutput; empty to follow links
    - `allowed`: local directories and files; if there are any, no other files are read"""

    uri: str
    storage: Storage = FROM_ENVIRONMENT
    root: str = field(default="", compare=False, repr=False)
    allowed: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The file system of pyarrow. Raises OSError if settings of an object store are missing."""
        if self.local and (self.allowed or "\\x" in self.path):  # pyarrow cannot open escaped names
            return local_files.contained(self.allowed or ("/",))
        if self.local:
            return pafs.LocalFileSystem()
        return object_store(self.scheme, self.path.split("/", 1)[0], self.storage)

    @property
    def scheme(self) -> str:
        """The scheme of the address, such as `s3`; `file` for a local path."""
        return scheme_of(self.uri)

    @property
    def local(self) -> bool:
        """Whether this is a path of this machine, not an address in an object store."""
        return is_local(self.uri)

    @property
    def path(self) -> str:
        """The path in the file system: an absolute path as in `file_names`, or `BUCKET/KEY`."""
        if self.local:
            return escaped(os.path.abspath(os_path(local_path(self.uri))))
        return self.uri.split("://", 1)[1].rstrip("/")

    @property
    def library_uri(self) -> str:
        """The address in the form that the libraries of table formats accept."""
        return self.path if self.local else self.uri.rstrip("/")

    @property
    def storage_options(self) -> dict[str, str]:
        """The store's options for Lance and Delta. Raises OSError if settings are missing."""
        return storage_options(self.scheme, self.storage)

    def in_store_of(self, other: Location) -> bool:
        """Return whether both addresses are in one store. Only then, paths can be compared."""
        same_service = self.local or self.storage.endpoint == other.storage.endpoint
        return self.scheme == other.scheme and same_service

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.uri.rstrip('/')}/{name}", self.storage, self.root, self.allowed)

    def at(self, path: str) -> Location:
        """Return the address of another path in the same file system."""
        uri = path if self.local else f"{self.scheme}://{path}"
        return Location(uri, self.storage, self.root, self.allowed)

    def without_links_below(self, root: Location) -> Location:
        """Return this address with a `root` below which symbolic links are refused. Otherwise,
        other users who can write below `root` could redirect reads and writes by links."""
        return replace(self, root=root.path) if self.local and root.local else self

    def contained_in(self, paths: Iterable[str]) -> Location:
        """Return this address, from which only these local files, directories or globs can be read.
        Symbolic links to other files are refused."""
        if not self.local:
            return self
        paths = (Location(path).path for path in paths)
        roots = (path if os.path.exists(os_path(path)) else _GLOB.split(path)[0] for path in paths)
        return replace(self, allowed=tuple(roots))

    def info(self) -> pafs.FileInfo:
        """Return the type, size and time; the type is NotFound if there is no such path."""
        self._refuse_links()
        if self.local:
            return with_retries(lambda: local_files.info_of(self.path))
        return with_retries(lambda: self.filesystem.get_file_info(self.path))

    def _refuse_links(self) -> None:
        if self.local and (link := local_files.linked_part(self.path, self.root)) is not None:
            raise local_files.LinkedPath.at(link)

    def exists(self) -> bool:
        """Return whether there is a file or directory. Raises BadOutput for a link below `root`."""
        return bool(self.info().type != pafs.FileType.NotFound)

    def read(self, limit: int | None = None) -> bytes:
        """Return the content, or its first `limit` bytes. Compressed files are not decompressed."""
        if self.local:
            return with_retries(lambda: local_files.read(self.path, self.root, limit, self.allowed))
        return with_retries(lambda: self._read(limit))

    def _read(self, limit: int | None) -> bytes:
        # an input file knows its size and needs one request; a stream makes many requests
        with self.filesystem.open_input_file(self.path) as file:
            return bytes(file.read(limit if limit is None else min(limit, file.size())))

    @property
    def compression(self) -> str | None:
        """The compression that this file has according to its extension; None if uncompressed."""
        return COMPRESSIONS.get(self.path.lower().rpartition(".")[2])

    def open_stream(self) -> io.BufferedReader | pa.NativeFile:
        """Open this file as a decompressed stream. The method `read1` returns fewer bytes than
        requested only at the end of the file. If the end of a gzip file is missing, `read1` raises
        MissingEnd after the last byte."""
        return self.unpacked(self.filesystem.open_input_stream(self.path, compression=None))

    def unpacked(self, source: pa.NativeFile) -> io.BufferedReader | pa.NativeFile:
        """Return the stream of `open_stream`. `source` is this file, opened by the caller."""
        if self.compression == "gzip":
            return io.BufferedReader(_GzipStream(source))
        packed = self.compression is not None
        return pa.CompressedInputStream(source, self.compression) if packed else source

    def open_input_file(self) -> pa.NativeFile:
        """Open this file for random access, without decompressing it."""
        if self.local and not self.allowed:
            return pa.PythonFile(local_files.open_regular(self.path, self.root), mode="r")
        return self.filesystem.open_input_file(self.path)

    def write(self, content: bytes | memoryview) -> None:
        """Write the whole file atomically. An existing file is replaced."""
        if self.local:
            local_files.write(self.path, self.root, content)
        else:
            with_retries(lambda: self._put(content))

    def _put(self, content: bytes | memoryview) -> None:
        with self.filesystem.open_output_stream(self.path, compression=None) as stream:
            stream.write(content)

    def update(self, change: Change) -> None:
        """Replace the content of this small file by `change(content)`. Other callers cannot change
        the file between its read and its write. Without locks of the file system or conditional
        puts of the store, such a change is unlikely, but possible.

        `change` may be called several times. Its exceptions are raised."""
        if self.local:
            with_retries(lambda: local_files.update(self.path, self.root, change))
        elif not with_retries(lambda: update_object(self.scheme, self.path, self.storage, change)):
            self.write(change(self.read_if_exists()))

    def write_if(self, guard: Guard, content: bytes | memoryview) -> None:
        """Write the whole file if the guard allows it. Between the check and the write, nobody can
        change the guard's file on a disk, or this file in a store. Without locks or conditional
        puts, such a change is unlikely, but possible."""
        if self.local:
            local_files.write(self.path, self.root, content, guard.enforced())
        elif not with_retries(
            lambda: put_object(self.scheme, self.path, self.storage, content, guard.check)
        ):
            guard.check()
            self.write(content)

    def read_if_exists(self) -> bytes | None:
        """Return the content; None if this file does not exist."""
        try:
            return self.read()
        except FileNotFoundError:
            return None

    def files(self, *, recursive: bool = False) -> list[pafs.FileInfo]:
        """Return the files in this directory; none if it does not exist."""
        entries = self.content(recursive=recursive)
        return [info for info in entries if info.type == pafs.FileType.File]

    def content(self, *, recursive: bool = False) -> list[pafs.FileInfo]:
        """Return the entries of this directory; none if it does not exist. A broken link has the
        type NotFound. Other entries than files and directories have the type Unknown."""
        self._refuse_links()
        if self.local:
            return with_retries(lambda: local_files.entries_in(self.path, recursive=recursive))
        selector = pafs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
        return with_retries(lambda: self.filesystem.get_file_info(selector))

    def data_files(self) -> list[pafs.FileInfo]:
        """Return the files of a data set in this directory and in its partitions (`class=cat`).
        Files in directories that are symbolic links are not included."""
        files = []
        for info in self.content():
            is_partition = info.type == pafs.FileType.Directory and "=" in base_name(info.path)
            if info.type == pafs.FileType.File:
                files.append(info)
            elif is_partition and not self._is_linked(info.path):
                files += self.at(info.path).files(recursive=True)
        folders = {os.path.dirname(info.path) for info in files}
        linked = {folder for folder in folders if self._is_linked(folder)}
        return [info for info in files if os.path.dirname(info.path) not in linked]

    def _is_linked(self, folder: str) -> bool:
        """Return whether the path from here down to `folder` has a symbolic link."""
        return self.local and local_files.linked_part(folder, self.path) is not None

    def without_links(self, files: Iterable[pafs.FileInfo]) -> list[pafs.FileInfo]:
        """Return the files in this directory that are reached without a symbolic link. By a link,
        other users of the directory could add files that only the job can read."""
        return [info for info in files if not self._is_linked(info.path)]

    def visible_files(self, but: Location | None = None) -> list[pafs.FileInfo]:
        """Return the files, at any depth, that readers of data sets do not skip. Files in the
        directory `but` are left out.

        Readers skip paths with a part that begins with an underscore or a dot. They do not skip
        partitions, such as `_class=cat`."""
        files = self.files()
        for directory in self.directories():
            if not is_hidden(base_name(directory.path)):
                files += directory.files(recursive=True)
        parts = ((info, self.relative(info.path).split("/")) for info in files)
        visible = [info for info, names in parts if not any(map(is_hidden, names))]
        if but is None or not self.contains(but):
            return visible
        return [info for info in visible if not but.contains(self.at(info.path))]

    def directories(self) -> list[Location]:
        """Return the directories in this directory; none if it does not exist."""
        entries = self.content()
        return [self.at(info.path) for info in entries if info.type == pafs.FileType.Directory]

    def contains(self, other: Location) -> bool:
        """Return whether the other address is below this directory."""
        return other.path.startswith(self.path.rstrip("/") + "/") and other.in_store_of(self)

    def relative(self, path: str) -> str:
        """Return a path in the file system relative to this directory."""
        return path.removeprefix(self.path.rstrip("/") + "/")

    def delete(self) -> None:
        """Delete this file. It is not an error if the file does not exist."""
        if self.local:
            with_retries(lambda: local_files.delete(self.path, self.root))
            return
        with suppress(FileNotFoundError):
            with_retries(lambda: self.filesystem.delete_file(self.path))

    def delete_if(self, guard: Guard) -> None:
        """Delete this file as `delete` does, if the guard allows it. In a store, deletes have no
        condition. A driver that pauses after the check may delete a file that is newer."""
        with guard.enforced():
            self.delete()

    def move(self, target: Location) -> None:
        """Move this file to `target`, where it appears atomically. In a store, and between disks,
        the file is copied and then deleted. After an interruption, both files may exist."""
        if (
            self.local
            and target.local
            and local_files.rename(self.path, self.root, target.path, target.root)
        ):
            return
        if self.in_store_of(target) and not self.local:
            with_retries(lambda: self.filesystem.copy_file(self.path, target.path))
        else:
            target.write(self.read())
        self.delete()

    def delete_directory(self) -> None:
        """Delete this directory and its content."""
        if self.local:
            local_files.delete_directory(self.path, self.root)
            return
        delete_all(self.at(info.path) for info in self.files(recursive=True))

    def delete_directory_if(self, guard: Guard) -> None:
        """Delete this directory and its content if the guard allows it. In a store, only the
        files that were listed before the check are deleted."""
        if self.local:
            with guard.enforced():
                self.delete_directory()
            return
        files = [self.at(info.path) for info in self.files(recursive=True)]
        with guard.enforced():
            delete_all(files)


class MissingEnd(OSError):
    """The end of a gzip file is missing. All content before the missing end was read."""


class _GzipStream(io.RawIOBase):
    """The decompressed content of a gzip file. Unlike in pyarrow, zeros may follow the compressed
    data. If the end of the file is missing, MissingEnd is raised after the available content. Other
    damage raises OSError at once, because the content before the damage may be wrong."""

    def __init__(self, source: pa.NativeFile) -> None:
        self._source, self._content = source, gzip.GzipFile(fileobj=source)
        self._missing_end: MissingEnd | None = None

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._source.close()
        super().close()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Write the next bytes into `buffer` until it is full or the content ends."""
        size = 0
        while size < len(buffer) and (content := self._next(len(buffer) - size)):
            buffer[size : size + len(content)] = content
            size += len(content)
        if not size and self._missing_end is not None:
            raise self._missing_end
        return size

    def _next(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end, even if the end is missing."""
        try:
            return self._content.read1(size)
        except EOFError as error:
            self._missing_end = MissingEnd(f"the gzip stream is damaged: {error}")
            return b""
        except (gzip.BadGzipFile, zlib.error) as error:
            if isinstance(error, gzip.BadGzipFile) and not self._content.tell():
                raise  # the file is not gzip
            raise OSError(
                "the gzip stream is damaged, and rows before the damage may be missing or wrong: "
                f"{error}"
            ) from None


def delete_all(files: Iterable[Location]) -> None:
    """Delete files in parallel. Raises the first error."""
    with ThreadPoolExecutor(DELETE_THREADS) as pool:
        list(pool.map(Location.delete, files))


def is_hidden(name: str) -> bool:
    """Return whether readers of data sets skip files and directories with this name."""
    return name.startswith(("_", ".")) and "=" not in name


def is_inside(relative: str) -> bool:
    """Return whether a relative path has no `..`, no backslash, and no `.` or empty parts."""
    parts = relative.split("/")
    return "\\" not in relative and not any(part in ("", ".", "..") for part in parts)


def base_name(path: str) -> str:
    """Return the last part of a path."""
    return PurePosixPath(path).name


def remnant_of(name: str) -> str | None:
    """Return the name of the file to which a temporary file or a lock belongs; None for other
    names. A process that is killed may leave temporary files and locks behind."""
    match = _REMNANT.match(name)
    return match.group(1) if match else None
