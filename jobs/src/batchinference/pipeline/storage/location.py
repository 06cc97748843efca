"""Files at an address: a local path or an object store, through pyarrow's file systems.

A file appears whole or not at all. On a POSIX file system that takes a temporary file, fsync and a
rename; an object store does it with one put.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

import pyarrow.fs as pafs

from batchinference.pipeline.error_attribution import NO_SPACE
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.object_stores import object_store
from batchinference.pipeline.storage.retry import with_retries
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uris import is_local, local_path, scheme_of

DELETE_THREADS = 16
_REMNANT = re.compile(r"^\.(.+)-[a-z0-9_]{8}\.tmp$")
_STORES = re.compile(r"AWS Error|Azure Error: \[|google::cloud::Status\(")
"""By what the errors of object stores are told from those of pyarrow's decoders."""


@dataclass(frozen=True)
class Location:
    """A place in a storage system: `uri` as the user wrote it, `storage` how an object store is
    reached. Picklable and cheap."""

    uri: str
    storage: Storage = FROM_ENVIRONMENT

    @cached_property
    def filesystem(self) -> pafs.FileSystem:
        if self.local:
            return pafs.LocalFileSystem()
        return object_store(self.scheme, self.path.split("/", 1)[0], self.storage)

    @property
    def scheme(self) -> str:
        return scheme_of(self.uri)

    @property
    def local(self) -> bool:
        return is_local(self.uri)

    @property
    def path(self) -> str:
        """The path as the file system knows it: absolute, or bucket/key."""
        if self.local:
            return os.path.abspath(local_path(self.uri))
        return self.uri.split("://", 1)[1].rstrip("/")

    def in_store_of(self, other: Location) -> bool:
        """Whether both lie in the same store, so that their paths can be compared."""
        same_service = self.local or self.storage.endpoint == other.storage.endpoint
        return self.scheme == other.scheme and same_service

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.uri.rstrip('/')}/{name}", self.storage)

    def at(self, path: str) -> Location:
        """The address of another path of the same file system."""
        return Location(path if self.local else f"{self.scheme}://{path}", self.storage)

    def __reduce__(self) -> tuple[Any, ...]:
        # without the file system, which stays in its process
        settings = (self.storage,) if self.storage != FROM_ENVIRONMENT else ()
        return Location, (self.uri, *settings)

    def info(self) -> pafs.FileInfo:
        return with_retries(lambda: self.filesystem.get_file_info(self.path))

    def exists(self) -> bool:
        return bool(self.info().type != pafs.FileType.NotFound)

    def read(self, limit: int | None = None) -> bytes:
        """The file as it is, or its first `limit` bytes: one that is compressed stays so."""
        return with_retries(lambda: self._read(limit))

    def _read(self, limit: int | None) -> bytes:
        # a file's size is known, so that this is one request where a stream makes many
        with self.filesystem.open_input_file(self.path) as file:
            return bytes(file.read(limit if limit is None else min(limit, file.size())))

    def write(self, content: bytes | memoryview) -> None:
        """Put the whole file, replacing what was there."""
        if self.local:
            _write_local(Path(self.path), content)
        else:
            with_retries(lambda: self._put(content))

    def _put(self, content: bytes | memoryview) -> None:
        with self.filesystem.open_output_stream(self.path, compression=None) as stream:
            stream.write(content)

    def files(self, *, recursive: bool = False) -> list[pafs.FileInfo]:
        """The files below this directory; none when it does not exist."""
        selector = pafs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
        found = with_retries(lambda: self.filesystem.get_file_info(selector))
        return [info for info in found if info.type == pafs.FileType.File]

    def data_files(self) -> list[pafs.FileInfo]:
        """The files of a data set below this directory: those in it, and in the directories of
        its partitions (`class=cat`), but not behind symbolic links."""
        selector = pafs.FileSelector(self.path, allow_not_found=True)
        found = []
        for info in with_retries(lambda: self.filesystem.get_file_info(selector)):
            if info.type == pafs.FileType.File:
                found.append(info)
            elif "=" in base_name(info.path):
                found += self.at(info.path).files(recursive=True)
        folders = {os.path.dirname(info.path) for info in found}
        linked = {folder for folder in folders if self._is_linked(folder)}
        return [info for info in found if os.path.dirname(info.path) not in linked]

    def inside(self, name: str) -> Location:
        """Return the address of a file in this directory or in those of its partitions.

        Raises BadOutput if one of these is a symbolic link: whoever else can write here could have
        files elsewhere written."""
        place = self / name
        folder = os.path.dirname(place.path)
        if self._is_linked(folder):
            raise BadOutput(
                f"'{self.at(folder).uri}' leads out of the output by a symbolic link. Remove the "
                "link"
            )
        return place

    def _is_linked(self, folder: str) -> bool:
        """Return whether a directory below this one is reached by a symbolic link."""
        if not self.local:
            return False
        parts = self.below(folder).split("/") if folder != self.path else []
        steps = accumulate(parts, os.path.join, initial=self.path)
        return any(map(os.path.islink, islice(steps, 1, None)))

    def visible_files(self, but: Location | None = None) -> list[pafs.FileInfo]:
        """The files that readers of data sets take for rows, however deep they lie: no part of
        their path below this directory begins with an underscore or a dot, unless that names a
        partition (`_class=cat`). Of a directory `but` within this one there are none."""
        found = self.files()
        for directory in self.directories():
            if not _is_hidden(base_name(directory.path)):
                found += directory.files(recursive=True)
        parts = ((info, self.below(info.path).split("/")) for info in found)
        seen = [info for info, names in parts if not any(map(_is_hidden, names))]
        if but is None or not self.holds(but):
            return seen
        return [info for info in seen if not but.holds(self.at(info.path))]

    def directories(self) -> list[Location]:
        """The directories in this one; none when it does not exist."""
        selector = pafs.FileSelector(self.path, allow_not_found=True)
        found = with_retries(lambda: self.filesystem.get_file_info(selector))
        return [self.at(info.path) for info in found if info.type == pafs.FileType.Directory]

    def holds(self, other: Location) -> bool:
        """Whether the other lies below this directory."""
        inside = other.path.startswith(self.path.rstrip("/") + "/")
        return inside and other.in_store_of(self)

    def below(self, path: str) -> str:
        """The part of a path of the file system that follows this directory."""
        return path.removeprefix(self.path.rstrip("/") + "/")

    def delete(self) -> None:
        """Delete this file; one that is gone already is no error."""
        try:
            with_retries(lambda: self.filesystem.delete_file(self.path))
        except FileNotFoundError:
            pass

    def delete_directory(self) -> None:
        """Delete this directory with all that is in it."""
        if self.local:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        delete_all(self.at(info.path) for info in self.files(recursive=True))


def delete_all(files: Iterable[Location]) -> None:
    with ThreadPoolExecutor(DELETE_THREADS) as pool:
        list(pool.map(Location.delete, files))


def _write_local(path: Path, content: bytes | memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}-{uuid.uuid4().hex[:8]}.tmp"
    try:
        with temporary.open("xb") as file:  # with the permissions that the umask leaves
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise _full(path.parent, error.errno) from None
        raise
    _sync_directory(path.parent)


def _full(directory: Path, number: int | None) -> OSError:
    free = shutil.disk_usage(directory).free >> 20
    return OSError(
        number,
        f"the disk of '{directory}' is full: {free} MB are free. Free some space, then run the "
        "same job again to resume",
    )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) and "=" not in name


def is_inside(relative: str) -> bool:
    """Return whether a relative path stays below its folder, and no other path means the same."""
    parts = relative.split("/")
    return "\\" not in relative and not any(part in ("", ".", "..") for part in parts)


def base_name(path: str) -> str:
    return PurePosixPath(path).name


def remnant_of(name: str) -> str | None:
    """The name of the file that a process was about to put as it died, by that of what it has left
    on a disk; None for any other name."""
    found = _REMNANT.match(name)
    return found.group(1) if found else None


def is_storage_error(error: BaseException) -> TypeGuard[OSError]:
    """Whether an error speaks of storage, and not of the bytes that came from there: Arrow's
    decoders raise OSError as well, without a number."""
    if not isinstance(error, OSError):
        return False
    return error.errno is not None or bool(_STORES.search(str(error)))


def raise_trouble(error: Exception) -> None:
    """Raise an error that speaks of storage, and not of the file."""
    if is_storage_error(error):
        raise error
