"""Creates input snapshots of tables with versions (Delta, Iceberg); one module per table format.

An input snapshot lists data files and their deleted rows. A resumed job therefore reads the same
rows, even if the table has changed. Deleted rows have no row ids. With `write.mode: append`, a
later run reads only the changes after the last version that was read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.file_pruning import FileBounds
from batchinference.pipeline.input.table_version import TableVersion
from batchinference.pipeline.storage.location import Location

CHANGE_TYPE, INSERT = "_change_type", "insert"
"""The column with the kind of change, and its value for an inserted row."""


@dataclass(frozen=True)
class DataFile:
    """A data file of a table: its path in the file system, and its size in bytes.

    `constants` has the values of columns that have the same value in all rows. If a value is None,
    the column is read from the file. `deleted` is a bitmap of the positions of deleted rows."""

    path: str
    size: int
    modified: int | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)
    deleted: bytes | None = None
    bounds: FileBounds = field(default_factory=dict)


@dataclass(frozen=True)
class FilesToRead:
    """The data files of a version of a table, or of changes (see `TableVersion`). The schema of
    `version` includes the columns in `DataFile.constants`, such as the kind of change."""

    version: TableVersion
    files: Sequence[DataFile]


class VersionedTable(Protocol):
    """An opened table. Its methods raise BadInput with the name of the incorrect field."""

    root: Location
    """The location that opens data files. On a disk, it refuses files outside of the table."""
    identity: str
    """The id of the table. Its versions have this id as `TableVersion.table`."""

    def current(self) -> int:
        """Return the version that the job reads: the one that the spec names, or the latest."""

    def at(self, version: int) -> FilesToRead:
        """Return the data files of a version."""

    def between(self, since: int, version: int) -> FilesToRead:
        """Return the changes after the version `since`, up to `version`."""

    def live(self) -> Collection[str]:
        """Return paths of data files that certainly exist, because the latest version has them."""


def check_change_columns(columns: Collection[str], added: pa.Schema, table: str) -> None:
    """Raise BadInput if the columns of a table contain a name in `added`, such as `_change_type`.
    The message begins with `table`."""
    if duplicates := [name for name in added.names if name in columns]:
        raise BadInput(
            f"{table} has a column '{duplicates[0]}', which is the name of a column of changes. "
            "Rename it in the table"
        )
