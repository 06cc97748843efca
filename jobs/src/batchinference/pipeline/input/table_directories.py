"""Recognizes directories of table formats, whose files must not be read as they are.

Such a table also keeps the files of earlier versions, and rows that were deleted. Only its metadata
says which files and rows count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow.fs as pafs

from batchinference.pipeline.storage.location import Location, base_name

_EXPORT = (
    "Its files also hold deleted rows, so they are not read. Export a snapshot of the table as "
    "Parquet files and read these, or name single files in read.paths to read them as they are"
)
_LANCE = "Set read.format to lance, and read.path to this directory"
_METADATA = {
    "_delta_log": ("Delta Lake", re.compile(r".*\.(json|parquet)"), _EXPORT),
    "metadata": ("Iceberg", re.compile(r".*\.metadata\.json(\.gz)?"), _EXPORT),
    ".hoodie": ("Hudi", re.compile(r"hoodie\.properties|.*\.(commit|deltacommit)"), _EXPORT),
    "_versions": ("Lance", re.compile(r".*\.manifest"), _LANCE),
}
"""The directory with the metadata of each table format, and the names of its files."""


@dataclass(frozen=True)
class TableDirectory:
    """The directory of a table, the name of its format, and how to read it."""

    path: str
    format: str
    fix: str

    def __str__(self) -> str:
        return f"'{self.path}' is a table of the format {self.format}. {self.fix}"


def tables_in(infos: Sequence[pafs.FileInfo], address: Location) -> Iterator[TableDirectory]:
    """Yield the tables whose metadata is in a listing of files at `address`. If the listing has
    only the directory of the metadata, its files are listed here."""
    listed = {os.path.dirname(info.path) for info in infos}
    for info in infos:
        if info.type == pafs.FileType.File:
            yield from _tables_of(info.path)
        elif base_name(info.path) in _METADATA and info.path not in listed:
            for file in address.at(info.path).files():
                yield from _tables_of(file.path)


def _tables_of(file: str) -> Iterator[TableDirectory]:
    """Yield the table of a file if the file is metadata of a table."""
    directory, name = os.path.split(file)
    table, kind = os.path.split(directory)
    if kind in _METADATA:
        table_format, names, fix = _METADATA[kind]
        if names.fullmatch(name):
            yield TableDirectory(table, table_format, fix)


def tables_above(directory: Location) -> Iterator[TableDirectory]:
    """Yield the tables to which a directory of data files or of a partition belongs."""
    path, name = os.path.split(directory.path)
    while path and (name == "data" or "=" in name):
        places = (pafs.FileInfo(f"{path}/{kind}", pafs.FileType.Directory) for kind in _METADATA)
        with suppress(OSError):  # only the directory itself must be readable
            yield from tables_in(list(places), directory)
        path, name = os.path.split(path)
