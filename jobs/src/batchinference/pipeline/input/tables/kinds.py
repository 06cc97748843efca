"""Creates input snapshots of tables. The module of a table format is imported when it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from batchinference.pipeline.errors import FORMATS_EXTRA, BadInput, require_package
from batchinference.pipeline.input.changed_files import NoNewFiles, ProcessedFiles, ResumedInput
from batchinference.pipeline.input.file_pruning import Bounds, matching
from batchinference.pipeline.input.ignored_files import NONE_IGNORED
from batchinference.pipeline.input.input_snapshot import InputSnapshot, file_table
from batchinference.pipeline.input.readers.table_data_file import (
    START_OVER,
    VersionedReader,
    removed_file,
)
from batchinference.pipeline.input.table_version import TableVersion
from batchinference.pipeline.input.tables import CHANGE_TYPE, INSERT, FilesToRead, VersionedTable
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import ReadVersioned

THREADS = 32
"""Maximum number of concurrent checks whether a data file exists."""


LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}
"""The library of each table format. The module of each format has the function `open_versioned`,
and READER, the class that reads data files."""


def open_table(read: ReadVersioned) -> VersionedTable:
    """Open the table of a read configuration. Raises BadInput if it cannot be opened."""
    library = LIBRARIES[read.format]
    require_package(f"the format '{read.format}'", library, FORMATS_EXTRA, BadInput)
    module = importlib.import_module(f"{__package__}.{read.format}")
    return cast(VersionedTable, module.open_versioned(read))


def reader_of(read: ReadVersioned, version: TableVersion | None) -> VersionedReader:
    """Return the reader of a table's data files. `version` is the version in the input snapshot."""
    version = cast(TableVersion, version)
    options, names = read.options, version.schema.names
    has_changes = version.since is not None or options.changes == "include"
    added = {CHANGE_TYPE, *options.CHANGE_COLUMNS} if has_changes else set[str]()
    own_columns = [name for name in names if name not in added]
    where = options.filter
    if added and options.changes == "inserts":
        inserts = f"{CHANGE_TYPE} == '{INSERT}'"
        where = f"{inserts} and (\n{where}\n)" if where else inserts
    wanted = [*(options.columns or own_columns), *options.added_columns]
    module = importlib.import_module(f"{__package__}.{read.format}")
    return cast(VersionedReader, module.READER(version, wanted, where))


def list_table(read: ReadVersioned, earlier: ResumedInput | ProcessedFiles | None) -> InputSnapshot:
    """Return the input snapshot of a job that reads a table. The snapshot may have no files.

    Raises BadInput if the table cannot be read, or a data file with unread rows is gone. Raises
    NoNewFiles if the job has already read the current version."""
    table = open_table(read)
    if isinstance(earlier, ResumedInput):
        snapshot = replace(earlier.snapshot, root=table.root)
        check_exist(table, snapshot, earlier.unfinished(None))
        return snapshot
    versions = [each.version for each in earlier.snapshots if each.version] if earlier else []
    snapshot = snapshot_of(read, table.root, _unread(table, versions))
    check_exist(table, snapshot, range(len(snapshot)))
    return snapshot


def _unread(table: VersionedTable, read: Sequence[TableVersion]) -> FilesToRead:
    """Return what no output has read: the current version in the first run, and later, the changes
    after the last version. `read` has what the outputs have read, in order. An output that is
    computed again is not in `read`, and reads the same part again:

    version 1, changes from 3 to 7, changes from 9 to 12 -> changes from 1 to 3

    Raises BadInput if a version in `read` is of an earlier table at the same path."""
    known = {version.since: version.version for version in read}
    since: int | None = None
    while since in known:
        since = known.pop(since)
    starts = [start for start in known if start is not None and start not in known.values()]
    version = starts[0] if starts else table.current()
    for each in read:
        if each.table != table.identity:
            raise BadInput(
                f"read: {each.name} was created again since version {each.version} was read. "
                f"{START_OVER}"
            )
    if since is None:
        return table.at(version)
    if since == version:
        raise NoNewFiles(NONE_IGNORED)
    return table.between(since, version)


def snapshot_of(read: ReadVersioned, root: Location, listed: FilesToRead) -> InputSnapshot:
    """Return an input snapshot of the files in which a row may match the filter."""
    schema, files = listed.version.schema, list(listed.files)
    condition = reader_of(read, listed.version).condition
    if condition is not None:
        bounds = [{**file.bounds, **_bounds_of(file.constants)} for file in files]
        files = [files[index] for index in sorted(matching(condition, schema, bounds))]
    table = file_table([(file.path, file.size, file.modified) for file in files])
    deleted = pa.array([file.deleted for file in files], pa.binary())
    table = table.append_column("deleted", deleted)
    names = dict.fromkeys(name for file in files for name in file.constants)
    if names:
        kind = pa.struct([schema.field(name) for name in names])
        constants = pa.array([dict(file.constants) for file in files], kind)
        table = table.append_column("constants", constants)
    return InputSnapshot(root, table, version=listed.version)


def check_additions(read: ReadVersioned, snapshot: InputSnapshot) -> None:
    """Raise BadInput in the first run of a job if a column has the name of a change column. Later
    runs, which read changes, would fail."""
    version, names = cast(TableVersion, snapshot.version), read.options.CHANGE_COLUMNS
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


def check_exist(table: VersionedTable, snapshot: InputSnapshot, files: Collection[int]) -> None:
    """Raise BadInput if one of the data files with the numbers `files` is gone."""
    live, paths = set(table.live()), snapshot.table.column("path").to_pylist()
    gone = gone_files(snapshot, [number for number in files if paths[number] not in live])
    if gone and snapshot.version is not None:
        raise removed_file(snapshot.version, snapshot.root.at(paths[gone[0]]).uri)


def gone_files(snapshot: InputSnapshot, files: Collection[int]) -> list[int]:
    """Return the numbers among `files` whose data files are gone."""
    paths = snapshot.table.column("path").to_pylist()
    with ThreadPoolExecutor(THREADS) as pool:
        exist = pool.map(lambda number: snapshot.root.at(paths[number]).exists(), files)
        return [number for number, known in zip(files, exist, strict=True) if not known]
