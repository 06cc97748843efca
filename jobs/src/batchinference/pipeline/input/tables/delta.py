"""Lists the data files of versions and of changes of Delta Lake tables.

`deltalake` lists the files of a version. This module reads changes from the commits of the log:
- A commit that rewrites files has change files if the change data feed is enabled.
- In other commits, rows of added files are inserted, and rows of removed files are deleted."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyroaring import BitMap64

from batchinference.pipeline.errors import BadInput, describe, redact
from batchinference.pipeline.input.file_pruning import Bounds
from batchinference.pipeline.input.readers.table_data_file import START_OVER, VersionedReader
from batchinference.pipeline.input.table_version import TableVersion
from batchinference.pipeline.input.tables import (
    CHANGE_TYPE,
    INSERT,
    DataFile,
    FilesToRead,
    VersionedTable,
    check_change_columns,
)
from batchinference.pipeline.storage.location import Location, is_inside
from batchinference.spec.read import ReadDelta

FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""The supported reader features. `columnMapping` is also allowed if its mode is `none`."""
_FEED, _MAPPING = "delta.enableChangeDataFeed", "delta.columnMapping.mode"
_CHANGES = pa.schema(
    [
        (CHANGE_TYPE, pa.string()),
        ("_commit_version", pa.int64()),
        ("_commit_timestamp", pa.timestamp("ms", "UTC")),
    ]
)
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_B85 = bytes.maketrans(_Z85, _B85)
_ID_LENGTH = 20
"""Number of characters of the encoded UUID in the path of a deletion vector."""
_NOT_IN_LOG = re.compile("No files in log segment|contiguous commit|the specified end version")
"""Matches errors of the library about a version whose commits were deleted from the log."""
_MAGIC_BYTES = _LENGTH_BYTES = 4
_BOUNDS = "min", "max", "null_count"
"""Columns in the list of files. Each value is a struct with a field for each table column."""
READER = VersionedReader


class DeltaVersions(VersionedTable):
    """The versions of a Delta table."""

    def __init__(self, read: ReadDelta) -> None:
        """Raises BadInput if the table cannot be opened, or needs unsupported features."""
        self.read = read
        self._directory = Location(read.path, read.storage)
        self.root = self._directory.contained_in([read.path])
        self._name = f"the Delta table '{self._directory.uri}'"
        self._latest = self._open(None)
        self.identity = str(self._latest.metadata().id)

    def _open(self, version: int | None) -> DeltaTable:
        try:
            options = self._directory.storage_options
            table = DeltaTable(self._directory.library_uri, version, storage_options=options)
        except (DeltaError, OSError) as error:
            problem = describe(error).partition("\n")[0]
            if version is not None and _NOT_IN_LOG.search(problem):
                raise BadInput(
                    f"read.options.version: {self._name} cannot be read at version {version} any "
                    "more, because its log does not reach back to it. Read a later version"
                ) from None
            if isinstance(error, TableNotFoundError):
                problem = f"there is no Delta table at '{self._directory.uri}'. Correct the path"
                raise BadInput(f"read.path: {problem}") from None
            raise BadInput(f"read.path: {self._name} cannot be read: {problem}") from None
        self._check_features(table)
        return table

    def _check_features(self, table: DeltaTable) -> None:
        unknown = {*(table.protocol().reader_features or ())} - FEATURES - {"columnMapping"}
        mapped = table.metadata().configuration.get(_MAPPING, "none") != "none"
        if unknown or mapped:
            names = ", ".join(sorted(unknown)) or _MAPPING
            raise BadInput(
                f"read.path: {self._name} needs {names} of its readers, which is not supported. "
                "Read a copy of the table without it"
            )

    def current(self) -> int:
        latest, version = self._latest.version(), self.read.options.version
        if version is not None and version > latest:
            raise BadInput(
                f"read.options.version: {self._name} has no version {version}. The latest version "
                f"is {latest}"
            )
        return latest if version is None else version

    def at(self, version: int) -> FilesToRead:
        is_latest = version == self._latest.version()
        table = self._latest if is_latest else self._open(version)
        listed = self._latest_files if is_latest else pa.table(table.get_add_actions())
        rows = listed.select([name for name in listed.column_names if name not in _BOUNDS])
        deleted = self._deleted_in(table, listed["path"].to_pylist())
        added: dict[str, Any] = {}
        if self._includes_changes:
            time = None
            with suppress(BadInput):  # the log may no longer have this commit
                time = self._commit(version).timestamp
            added = dict(zip(_CHANGES.names, (INSERT, version, time), strict=True))
        files = [
            DataFile(
                self._path(row["path"]),
                row["size_bytes"],
                row["modification_time"] * 1_000_000,
                {**row.get("partition", {}), **added},
                deleted.get(row["path"]),
                _bounds(listed, number) if self.read.options.filter else {},
            )
            for number, row in enumerate(rows.to_pylist())
        ]
        files.sort(key=lambda file: (file.modified, file.path))
        return FilesToRead(self._version(table, None, changes=self._includes_changes), files)

    @property
    def _includes_changes(self) -> bool:
        return self.read.options.changes == "include"

    def _version(self, table: DeltaTable, since: int | None, *, changes: bool) -> TableVersion:
        columns = pa.schema(table.schema().to_arrow())
        for name in table.metadata().partition_columns:
            if pa.types.is_binary(columns.field(name).type):
                raise BadInput(
                    f"read.path: {self._name} is partitioned by '{name}', which is binary. Writers "
                    "log such values in different forms. Read a copy that has another partition"
                )
        fields = [(field.name, field.type) for field in columns]
        if changes:
            check_change_columns(columns.names, _CHANGES, f"read.path: {self._name}")
            fields += [(field.name, field.type) for field in _CHANGES]
        schema = pa.schema(fields)
        return TableVersion(self._name, table.version(), schema, since, self.identity)

    def _path(self, logged: str) -> str:
        """Return the path of a logged file. Raises BadInput if the file is outside of the table."""
        path = unquote(logged)
        if "://" in path or not is_inside(path):
            raise BadInput(
                f"read.path: {self._name} has the file '{path}' outside of its directory, as a "
                "shallow clone. Read a copy of the table"
            )
        return f"{self._directory.path}/{path}"

    def _deleted_in(self, table: DeltaTable, paths: Sequence[str]) -> dict[str, bytes]:
        """Return the bitmap of deleted positions, by logged path, of each file that needs one."""
        if "deletionVectors" not in (table.protocol().reader_features or ()):
            return {}
        deleted, logged = {}, {unquote(path): path for path in paths}
        root = unquote(table.table_uri).rstrip("/") + "/"
        for batch in table.deletion_vectors():
            rows = pa.record_batch(batch)
            for uri, live in zip(rows["filepath"], rows["selection_vector"], strict=True):
                positions = np.flatnonzero(~live.values.to_numpy(zero_copy_only=False))
                path = logged[unquote(uri.as_py()).removeprefix(root)]
                deleted[path] = BitMap64(positions).serialize()
        return deleted

    def live(self) -> set[str]:
        return set(map(self._path, self._latest_files.column("path").to_pylist()))

    @cached_property
    def _latest_files(self) -> pa.Table:
        """The data files of the latest version, as the library lists them."""
        return pa.table(self._latest.get_add_actions())

    def between(self, since: int, version: int) -> FilesToRead:
        table = self._latest if version == self._latest.version() else self._open(version)
        commits = [self._commit(number) for number in range(since + 1, version + 1)]
        self._find_feeds(table, since, commits)
        changed = self._version(table, since, changes=True)
        files = [file for commit in commits for file in self._changes(commit, changed.schema)]
        return FilesToRead(changed, files)

    def _commit(self, version: int) -> Commit:
        """Return the commit of a version. Raises BadInput if the log no longer has this commit."""
        log = self._directory / f"_delta_log/{version:020}.json"
        try:
            actions = list(map(json.loads, log.read().splitlines()))
        except FileNotFoundError:
            raise BadInput(
                f"read.path: {self._name} has removed version {version} from its log, so its later "
                f"changes are unknown. {START_OVER}, and let it keep its log longer than the time "
                "between two runs (delta.logRetentionDuration)"
            ) from None
        return Commit(version, [action for action in actions if action])

    def _find_feeds(self, table: DeltaTable, since: int, commits: Sequence[Commit]) -> None:
        """Set `feed` of each commit. The action `metaData` of a commit may turn the feed on or off.
        The setting before the first commit is the one of the version `since`."""
        settings = table.metadata().configuration
        if any(commit.all("metaData") for commit in commits):
            settings = {}
            with suppress(BadInput):  # if `since` is gone, assume no feed before `metaData`
                settings = self._open(since).metadata().configuration
        for commit in commits:
            for action in commit.all("metaData"):
                settings = action.get("configuration") or {}
            commit.feed = settings.get(_FEED) == "true"

    def _changes(self, commit: Commit, schema: pa.Schema) -> Iterator[DataFile]:
        """Yield the data files with the rows that a commit has changed."""
        if changed := commit.all("cdc"):
            yield from (self._file(action, commit, None, schema) for action in changed)
            return
        added, removed = commit.files("add"), commit.files("remove")
        if added.keys() - removed.keys() and removed and not commit.feed:
            raise BadInput(
                f"read.path: version {commit.version} of {self._name} rewrites files and has no "
                f"change data feed, so its new rows are unknown. {START_OVER}, and set {_FEED} "
                "of the table to true for later runs"
            )
        for path in sorted(added.keys() | removed.keys()):
            yield from self._changes_of_file(added.get(path), removed.get(path), commit, schema)

    def _changes_of_file(
        self,
        added: dict[str, Any] | None,
        removed: dict[str, Any] | None,
        commit: Commit,
        schema: pa.Schema,
    ) -> Iterator[DataFile]:
        """Yield a data file once for its inserted rows (if any), and once for its deleted rows (if
        any). `added` and `removed` are the actions of the commit for the path of the file."""
        before, after = (deleted_by(action, self._directory) for action in (removed, added))
        action = added or removed or {}
        if added and (removed is None or before - after):
            deleted = after if removed is None else _all_positions_except(before - after, action)
            yield self._file(action, commit, INSERT, schema, deleted)
        if removed and self._includes_changes and (added is None or after - before):
            deleted = before if added is None else _all_positions_except(after - before, action)
            yield self._file(action, commit, "delete", schema, deleted)

    def _file(
        self,
        action: dict[str, Any],
        commit: Commit,
        change: str | None,
        schema: pa.Schema,
        deleted: BitMap64 | None = None,
    ) -> DataFile:
        """Return the data file of an action. `change` is the kind of change; None if the file has a
        column with the kind of each row."""
        constants = self._partition(action, commit, schema)
        changes = zip(_CHANGES.names, (change, commit.version, commit.timestamp), strict=True)
        path, size = self._path(action["path"]), action.get("size") or 0
        bitmap = deleted.serialize() if deleted else None
        return DataFile(path, size, None, {**constants, **dict(changes)}, bitmap)

    def _partition(self, file: dict[str, Any], commit: Commit, schema: pa.Schema) -> dict[str, Any]:
        """Return the partition values of a file for the columns in the schema."""
        values = {}
        for name, text in (file.get("partitionValues") or {}).items():
            if name not in schema.names:
                continue
            kind = schema.field(name).type
            try:
                values[name] = _typed(text, kind)
            except pa.ArrowException:
                raise BadInput(
                    f"read.path: version {commit.version} of {self._name} has the partition "
                    f"{name}={redact(text)}, and the column is {kind} in the version to read. "
                    f"{START_OVER}"
                ) from None
        return values


@dataclass
class Commit:
    """A commit in the log of a table. `feed` tells whether the change data feed is enabled."""

    version: int
    actions: list[dict[str, Any]]
    feed: bool = field(default=False, init=False)

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return all actions of a kind, such as `add`."""
        return [action[kind] for action in self.actions if kind in action]

    def files(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the actions of a kind that change rows, by path. Compaction changes no rows."""
        return {action["path"]: action for action in self.all(kind) if action["dataChange"]}

    @property
    def timestamp(self) -> int | None:
        """The time of the commit in milliseconds; None if the log does not have it."""
        infos = self.all("commitInfo")
        times = [info.get("inCommitTimestamp", info.get("timestamp")) for info in infos]
        return next(iter(times), None)


open_versioned = DeltaVersions


def _all_positions_except(positions: BitMap64, action: dict[str, Any]) -> BitMap64:
    """Return all positions in the file of an action except for `positions`."""
    return BitMap64(range(json.loads(action["stats"])["numRecords"])) - positions


def _typed(text: str | None, kind: pa.DataType) -> Any:
    """Return the value of a partition, which the log has as a text. An empty text is null."""
    if not text:
        return None
    if pa.types.is_timestamp(kind):
        plain = pa.scalar(text.removesuffix("Z"))
        return plain.cast(pa.timestamp(kind.unit)).cast(kind).as_py()
    return pa.scalar(text).cast(kind).as_py()


def _bounds(listed: pa.Table, row: int) -> dict[str, Bounds]:
    """Return the bounds of the columns of a listed file, by column."""
    if "min" not in listed.column_names:
        return {}
    low, high, nulls = (listed[name][row] for name in _BOUNDS)
    bounds = {}
    for name in (name for name, value in low.items() if value.is_valid):
        with suppress(OverflowError):  # Python has no times after the year 9999
            last = high[name].as_py()  # the log cuts times to milliseconds
            upper = last + timedelta(milliseconds=1) if isinstance(last, datetime) else last
            bounds[name] = Bounds(low[name].as_py(), upper, nulls[name].as_py() != 0)
    return bounds


def deleted_by(action: Mapping[str, Any] | None, table: Location) -> BitMap64:
    """Return the positions in the deletion vector of an action; empty if there is no vector. Raises
    BadInput if the vector is damaged, or its file is missing or outside of the table."""
    vector = (action or {}).get("deletionVector")
    if not vector:
        return BitMap64()
    try:
        return BitMap64.deserialize(_bitmap(vector, table)[_MAGIC_BYTES:])
    except (ValueError, FileNotFoundError) as error:
        problem = f"a deletion vector of '{table.uri}' cannot be read: {error}"
        raise BadInput(f"read.path: {problem}") from None


def _bitmap(vector: Mapping[str, Any], table: Location) -> bytes:
    where, size = vector["pathOrInlineDv"], int(vector["sizeInBytes"])
    if vector["storageType"] == "i":
        return _from_z85(where)[:size]
    if vector["storageType"] != "u":
        raise ValueError("it is outside of the directory of the table")
    prefix, name = where[:-_ID_LENGTH], uuid.UUID(bytes=_from_z85(where[-_ID_LENGTH:]))
    path = f"{prefix}/deletion_vector_{name}.bin".lstrip("/")
    if not is_inside(path):
        raise ValueError("it is outside of the directory of the table")
    with (table / path).open_input_file() as file:
        return bytes(file.read_at(size, int(vector["offset"]) + _LENGTH_BYTES))


def _from_z85(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_TO_B85))
