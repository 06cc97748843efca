"""Tables with versions, one module per format, as input snapshots of their data files.

The rows of a data file are numbered without the deleted ones. An input snapshot holds all that is
needed to read them, so a resumed job reads the same rows although the table has changed. With
`append`, an addition has the changes after the last version that the job has read.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import pyarrow as pa

from batchinference.pipeline.errors import FORMATS_EXTRA, BadInput, require_package
from batchinference.pipeline.input.file_pruning import Bounds, FileBounds, matching
from batchinference.pipeline.input.ignored_files import NONE_IGNORED
from batchinference.pipeline.input.input_snapshot import (
    InputSnapshot,
    NoNewFiles,
    ProcessedFiles,
    ResumedInput,
)
from batchinference.pipeline.input.readers.table_data_file import (
    START_OVER,
    VersionedReader,
    removed_file,
)
from batchinference.pipeline.input.table_version import TableVersion
from batchinference.pipeline.row_batch import MAX_FILES
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import ReadVersioned

CHANGE_TYPE, INSERT = "_change_type", "insert"
"""The column with the kind of change, and its value for an inserted row."""
THREADS = 32
"""Files of which it is checked concurrently whether they exist."""


@dataclass(frozen=True)
class DataFile:
    """A data file of a table: its path in the file system, and its size in bytes.

    `constants` are columns with the same value in all rows; without a value, the file has the
    column. `deleted` is the bitmap of the positions that hold no rows. `bounds` are those of its
    columns."""

    path: str
    size: int
    modified: int | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)
    deleted: bytes | None = None
    bounds: FileBounds = field(default_factory=dict)


@dataclass(frozen=True)
class TableFiles:
    """The data files of a version of a table, or of the changes up to it. The schema of the version
    also has the columns that are constants, such as the kind of change."""

    version: TableVersion
    files: Sequence[DataFile]


class VersionedTable(Protocol):
    """A table that was opened. Its methods raise BadInput with the name of the incorrect field."""

    root: Location
    """An address in the file system of the data files, restricted to where they may be."""
    identity: str
    """The field `table` of its versions."""

    def current(self) -> int:
        """Return the version that the job reads: the latest, or the one that the spec names."""

    def at(self, version: int) -> TableFiles:
        """Return the data files of a version."""

    def between(self, since: int, version: int) -> TableFiles:
        """Return the changes after the version `since`, up to `version`."""

    def live(self) -> Collection[str]:
        """Return the paths of the data files of the latest version, which need no check."""


LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}
"""The library of each format of tables. Its module has the name of the format, and names the class
of the reader of data files (READER)."""


def open_table(read: ReadVersioned) -> VersionedTable:
    """Open the table of a read configuration. Raises BadInput if it cannot be opened."""
    library = LIBRARIES[read.format]
    require_package(f"the format '{read.format}'", library, FORMATS_EXTRA, BadInput)
    module = importlib.import_module(f"{__name__}.{read.format}")
    return cast(VersionedTable, module.open_versioned(read))


def reader_of(read: ReadVersioned, version: TableVersion | None) -> VersionedReader:
    """Return the reader of the data files of a version, which an input snapshot of a table has."""
    version = cast(TableVersion, version)
    options, names = read.options, version.schema.names
    has_changes = version.since is not None or options.changes == "include"
    added = {CHANGE_TYPE, *options.CHANGE_COLUMNS} if has_changes else set[str]()
    own = [name for name in names if name not in added]
    where = options.filter
    if added and options.changes == "inserts":
        inserts = f"{CHANGE_TYPE} == '{INSERT}'"
        where = f"{inserts} and (\n{where}\n)" if where else inserts
    wanted = [*(options.columns or own), *options.added_columns]
    module = importlib.import_module(f"{__name__}.{read.format}")
    return cast(VersionedReader, module.READER(version, wanted, where))


def list_table(read: ReadVersioned, earlier: ResumedInput | ProcessedFiles | None) -> InputSnapshot:
    """Return the input snapshot of a job, which reads a table.

    It may have no files, and then later runs need only later versions. Raises BadInput if a data
    file with missing rows is gone, and NoNewFiles if there is no version after those that were
    read."""
    table = open_table(read)
    if isinstance(earlier, ResumedInput):
        frozen = replace(earlier.frozen, root=table.root)
        check_exist(table, frozen, earlier.unfinished(None))
        return frozen
    versions = [each.version for each in earlier.lists if each.version] if earlier else []
    found = _unread(table, versions)
    frozen = snapshot_of(read, table.root, found)
    check_exist(table, frozen, range(len(frozen)))
    return frozen


def _unread(table: VersionedTable, read: Sequence[TableVersion]) -> TableFiles:
    """Return what is in no version that was read: normally the changes since the last one. If an
    earlier output is started over, it is the version, or the changes in between."""
    known = {version.since: version.version for version in read}
    since: int | None = None
    while since in known:
        since = known.pop(since)
    starts = set(known) - set(known.values())
    version = next((start for start in starts if start is not None), None)
    version = table.current() if version is None else version
    _check_identity(table, read)
    if since is None:
        return table.at(version)
    if since == version:
        raise NoNewFiles(NONE_IGNORED)
    return table.between(since, version)


def _check_identity(table: VersionedTable, read: Sequence[TableVersion]) -> None:
    """Raise BadInput if another table in the same place was read."""
    for version in read:
        if version.table != table.identity:
            raise BadInput(
                f"read: {version.name} was created again since version {version.version} was read. "
                f"{START_OVER}"
            )


def snapshot_of(read: ReadVersioned, root: Location, found: TableFiles) -> InputSnapshot:
    """Return the data files that may have wanted rows as an input snapshot."""
    schema, files = found.version.schema, list(found.files)
    condition = reader_of(read, found.version).condition
    if condition is not None:
        bounds = [{**file.bounds, **_bounds_of(file.constants)} for file in files]
        files = [files[index] for index in sorted(matching(condition, schema, bounds))]
    if len(files) > MAX_FILES:
        raise BadInput(f"the input has {len(files)} files; at most {MAX_FILES} are supported")
    columns = {
        "path": pa.array([file.path for file in files], pa.string()),
        "size": pa.array([file.size for file in files], pa.int64()),
        "modified": pa.array([file.modified for file in files], pa.int64()),
        "deleted": pa.array([file.deleted for file in files], pa.binary()),
    }
    names = dict.fromkeys(name for file in files for name in file.constants)
    if names:
        kind = pa.struct([schema.field(name) for name in names])
        columns["constants"] = pa.array([dict(file.constants) for file in files], kind)
    return InputSnapshot(root, pa.table(columns), version=found.version)


def check_change_columns(columns: Collection[str], added: pa.Schema, table: str) -> None:
    """Raise BadInput if a table has a column with the name of a column of changes. `table` is its
    field and its name in messages."""
    if twice := [name for name in added.names if name in columns]:
        raise BadInput(
            f"{table} has a column '{twice[0]}', which is the name of a column of changes. Rename "
            "it in the table"
        )


def check_additions(read: ReadVersioned, frozen: InputSnapshot) -> None:
    """Raise BadInput if the first run of a job would succeed, and those that read changes fail,
    because a column has the name of a column of changes."""
    version, names = cast(TableVersion, frozen.version), read.options.CHANGE_COLUMNS
    if version.since is not None or read.is_pinned or read.options.changes != "inserts":
        return
    for name in filter(version.schema.names.__contains__, names):
        raise BadInput(
            f"read: {version.name} has a column '{name}', which is the name of a column of "
            "changes, so later runs cannot add rows. Rename it in the table, or set write.mode "
            "to overwrite"
        )


def _bounds_of(constants: Mapping[str, Any]) -> dict[str, Bounds]:
    known = {name: value for name, value in constants.items() if value is not None}
    return {name: Bounds(value, value, nulls=False) for name, value in known.items()}


def check_exist(table: VersionedTable, frozen: InputSnapshot, files: Collection[int]) -> None:
    """Raise BadInput if one of these data files is gone."""
    live, paths = set(table.live()), frozen.table.column("path").to_pylist()
    gone = gone_files(frozen, [number for number in files if paths[number] not in live])
    if gone and frozen.version is not None:
        raise removed_file(frozen.version, frozen.root.at(paths[gone[0]]).uri)


def gone_files(frozen: InputSnapshot, files: Collection[int]) -> list[int]:
    """Return the numbers of those of these data files that are gone."""
    paths = frozen.table.column("path").to_pylist()
    with ThreadPoolExecutor(THREADS) as pool:
        exist = pool.map(lambda number: frozen.root.at(paths[number]).exists(), files)
        return [number for number, known in zip(files, exist, strict=True) if not known]
