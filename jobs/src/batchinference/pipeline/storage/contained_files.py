"""A local file system that reads only files whose real path is in given directories.

Others may write to an input directory, and plant a symbolic link to a file that the job can read
and they cannot, such as a mounted Secret. The rows of that file would be in the output.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import lru_cache
from typing import Any, BinaryIO, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

from batchinference.file_names import os_path
from batchinference.pipeline.storage import local_files, local_listing


class _Handler(pafs.FileSystemHandler):  # type: ignore[misc]
    """Opens files for reading that are in the directories and files `places`."""

    def __init__(self, places: tuple[str, ...]) -> None:
        self._places = places
        self._local = pafs.LocalFileSystem()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and self._places == other._places

    def __hash__(self) -> int:
        return hash(self._places)

    def get_type_name(self) -> str:
        return "contained"

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [local_listing.info_of(path) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        return local_listing.content_of(selector.base_dir, recursive=selector.recursive)

    def normalize_path(self, path: str) -> str:
        return str(self._local.normalize_path(path))

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._opened(path, self._local.open_input_file)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._opened(path, lambda file: self._local.open_input_stream(file, None))

    def _opened(self, path: str, open_: Any) -> pa.NativeFile:
        """Open a file. Its path is checked after it was opened, because others may replace it
        with a link at any time."""
        with local_files.opened(path, root="") as file:
            _check_place(path, file, self._places)
            descriptor = f"/proc/self/fd/{file.fileno()}"
            here = os.path.exists(descriptor)  # only Linux has it
            return open_(descriptor if here else os_path(path))

    def _refuse(self, *_: object) -> NoReturn:
        raise PermissionError("this file system is for reading")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


def contained(places: tuple[str, ...]) -> pafs.FileSystem:
    """Return a local file system that opens only these files and the files in these directories.
    Opening another file, also through a link, raises an OSError without errno."""
    return pafs.PyFileSystem(_Handler(places))


def read(path: str, places: tuple[str, ...], limit: int | None = None) -> bytes:
    """Return the content of a regular file in these files and directories, or its first `limit`
    bytes. Another file raises the same error as in `contained`."""
    with local_files.opened(path, root="") as file:
        _check_place(path, file, places)
        return local_files.content_of(file, limit)


def _check_place(path: str, file: BinaryIO, places: tuple[str, ...]) -> None:
    """Raise OSError if the real path of an opened file is not in `places`."""
    try:
        real = os.readlink(f"/proc/self/fd/{file.fileno()}")
    except OSError:  # only Linux has it
        real = os.path.realpath(os_path(path))
    named = _paths(places)
    # a link to an input directory is rare, and slow to resolve
    if not (_is_in(real, named) or _is_in(real, {os.path.realpath(place) for place in named})):
        raise OSError(
            f"'{path}' is read through a symbolic link, and the file is outside of "
            "read.paths. Add a directory that holds both to read.paths"
        )


@lru_cache(maxsize=8)
def _paths(places: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(os_path, places))


def _is_in(path: str, places: Collection[str]) -> bool:
    """Return whether a path, or a directory above it, is one of these."""
    while path not in places:
        path, below = os.path.dirname(path), path
        if path == below:
            return False
    return True
