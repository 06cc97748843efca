"""Opens Iceberg tables, and lists the data files of snapshots and of changes. Data files are left
out if their statistics show that the filter of the job removes all rows."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from pyiceberg import expressions as iceberg
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import (
    DateType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyroaring import BitMap64

from batchinference.pipeline.errors import BadInput, JobFailure, describe
from batchinference.pipeline.input.readers.iceberg_data_file import (
    MAPPING,
    SCHEMA,
    IcebergReader,
    TableRows,
)
from batchinference.pipeline.input.table_version import TableVersion
from batchinference.pipeline.input.tables import (
    CHANGE_TYPE,
    DataFile,
    FilesToRead,
    VersionedTable,
    check_change_columns,
)
from batchinference.pipeline.input.tables.iceberg_changes import (
    Change,
    IcebergFiles,
    commits_after,
    partition_of,
)
from batchinference.pipeline.storage.iceberg_catalog import open_catalog, table_in
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.object_stores import storage_options
from batchinference.spec.addresses import SCHEMES
from batchinference.spec.expression import parse_expression
from batchinference.spec.read import ReadIceberg
from batchinference.spec.storage import Storage

READER = IcebergReader
_CHANGES = pa.schema(
    [
        (CHANGE_TYPE, pa.string()),
        ("_change_ordinal", pa.int64()),
        ("_commit_snapshot_id", pa.int64()),
        ("_commit_timestamp", pa.timestamp("ms", "UTC")),
    ]
)
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
Columns: TypeAlias = list[tuple[NestedField, pa.DataType]]
"""The columns of a table, each with the Arrow type of its values."""
NO_SNAPSHOT = 0
"""The version number of a table that has no snapshot yet."""
SHOWN_SNAPSHOTS = 5
"""Maximum number of snapshots in a message."""


def open_versioned(read: ReadIceberg) -> IcebergVersions:
    """Open an Iceberg table. Raises BadInput if there is none, or if it cannot be opened."""
    name = f"the Iceberg table '{read.table}'"
    try:
        catalog = open_catalog(read, "", read.storage, "read")
        table = table_in(catalog, read)
    except JobFailure:
        raise
    except NoSuchNamespaceError:
        table = None
    except Exception as error:  # noqa: BLE001 - each catalog has its own errors
        raise BadInput(f"read.catalog: {name} cannot be opened: {describe(error)}") from None
    if table is None:
        raise BadInput(
            f"read.table: {name} does not exist in the catalog '{read.catalog.name}'. Correct the "
            "name or read.catalog"
        )
    return IcebergVersions(read, name, table)


@dataclass
class IcebergVersions(VersionedTable):
    """The snapshots of an Iceberg table."""

    read: ReadIceberg
    name: str
    table: Table

    def __post_init__(self) -> None:
        self._metadata = self.table.metadata
        self.identity = str(self._metadata.table_uuid)
        roots = [self.table.location(), self.table.properties.get("write.data.path")]
        directories = [location_of(root, self.read.storage) for root in roots if root]
        self.root = directories[0].contained_in([each.uri for each in directories])
        self._directories = tuple(f"{each.path}/" for each in directories)
        self._latest_paths: list[str] = []

    def current(self) -> int:
        latest, number = self._metadata.current_snapshot(), self.read.options.snapshot
        if number is None:
            return latest.snapshot_id if latest else NO_SNAPSHOT
        return self._snapshot(number).snapshot_id

    def _snapshot(self, number: int) -> Snapshot:
        """Return the snapshot with this id. Raises BadInput if the table does not have it."""
        if (snapshot := self._metadata.snapshot_by_id(number)) is None:
            known = [str(each.snapshot_id) for each in self._metadata.snapshots[-SHOWN_SNAPSHOTS:]]
            raise BadInput(
                f"read.options.snapshot: {self.name} has no snapshot {number}, or it has expired. "
                f"The latest are {', '.join(known) or 'none'}"
            )
        return snapshot

    def at(self, version: int) -> FilesToRead:
        snapshot = self._snapshot(version) if version != NO_SNAPSHOT else None
        schema = self._schema_at(snapshot)
        rows = self._files(schema).at(snapshot) if snapshot else []
        added = _CHANGES if self.read.options.changes == "include" else pa.schema([])
        typed = _columns(schema)
        files = [self._file(change, typed, added) for change in rows]
        if snapshot == self._metadata.current_snapshot():
            self._latest_paths = [file.path for file in files]
        return FilesToRead(self._version(version, schema, added), files)

    def between(self, since: int, version: int) -> FilesToRead:
        now = self._metadata.snapshot_by_id(version)
        schema = self._schema_at(now)
        files_of = self._files(schema)
        if since == NO_SNAPSHOT and now is not None:  # all rows are new; old snapshots may be gone
            changes: Iterable[Change] = files_of.at(now)
        else:
            changes = files_of.changes(commits_after(self._metadata, since, now))
        typed = _columns(schema)
        files = [self._file(change, typed, _CHANGES) for change in changes]
        return FilesToRead(self._version(version, schema, _CHANGES, since), files)

    def live(self) -> list[str]:
        return self._latest_paths

    def _schema_at(self, snapshot: Snapshot | None) -> Schema:
        """Return the columns of a snapshot. The latest snapshot has the current columns."""
        current = self._metadata.schema()
        if snapshot is None or snapshot == self._metadata.current_snapshot():
            return current
        return self._metadata.schema_by_id(snapshot.schema_id or 0) or current

    def _files(self, schema: Schema) -> IcebergFiles:
        metadata = self._metadata.model_copy(update={"current_schema_id": schema.schema_id})
        condition = iceberg_filter(self.read.options.filter, schema)
        return IcebergFiles(metadata, self.table.io, condition)

    def _version(
        self, version: int, schema: Schema, added: pa.Schema, since: int | None = None
    ) -> TableVersion:
        """Return a version with the columns in `schema`, and the change columns `added`."""
        columns = TableRows(schema, None).types
        check_change_columns(columns.names, added, f"read.table: {self.name}")
        mapping = self.table.properties.get(MAPPING.decode())
        metadata = {SCHEMA: schema.model_dump_json(), **({MAPPING: mapping} if mapping else {})}
        columns = pa.schema([*columns, *added], metadata)
        return TableVersion(self.name, version, columns, since, self.identity)

    def _file(self, change: Change, columns: Columns, added: pa.Schema) -> DataFile:
        file, snapshot = change.file, change.snapshot
        location = location_of(file.file_path, self.read.storage)
        in_store = location.in_store_of(self.root)
        if not in_store or not location.path.startswith(self._directories):
            raise BadInput(
                f"read.table: {self.name} has the data file {file.file_path}, which is outside of "
                "its location. Read a copy of the table"
            )
        values = (change.kind, change.ordinal, snapshot.snapshot_id, snapshot.timestamp_ms)
        constants = self._partition(file, columns) | dict(zip(added.names, values, strict=False))
        left_out = BitMap64(np.flatnonzero(~change.wanted))
        deleted = left_out.serialize() if left_out else None
        return DataFile(location.path, file.file_size_in_bytes, None, constants, deleted)

    def _partition(self, file: IcebergFile, columns: Columns) -> dict[str, Any]:
        """Return the identity partition values of a file by column. Values that Python cannot hold
        are left out."""
        values = partition_of(file, self._metadata)
        typed = {
            column.name: _typed(kind, values[column.field_id])
            for column, kind in columns
            if column.field_id in values
        }
        return {name: value for name, value in typed.items() if value is not None}


def _columns(schema: Schema) -> Columns:
    return list(zip(schema.columns, TableRows(schema, None).types.types, strict=True))


def location_of(uri: str, storage: Storage) -> Location:
    """Return the location of an Iceberg address. Raises BadInput for an unsupported storage."""
    parts = urlsplit(uri)
    scheme, rest = _ALIASES.get(parts.scheme, parts.scheme), uri.partition("://")[2]
    if scheme in ("abfs", "abfss", "wasb", "wasbs"):
        container, _, host = parts.netloc.partition("@")
        account = storage_options("az", storage)["azure_storage_account_name"]
        if host.partition(".")[0] == account:
            return Location(f"az://{container}{parts.path}", storage)
    elif scheme in ("", "file"):
        return Location(uri[len("file:") :] if uri.startswith("file:/") else uri, storage)
    elif scheme in SCHEMES:
        return Location(f"{scheme}://{rest}", storage)
    raise BadInput(
        f"read.table: its files are at {uri}, and this storage is not supported. Use a disk, "
        "s3://, gs://, or the Azure account in read.storage.endpoint"
    )


def _typed(kind: pa.DataType, value: Any) -> Any:
    """Return an Iceberg value of the type `kind` as a Python value; None if that is impossible."""
    try:
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Eq: iceberg.EqualTo,
    ast.Gt: iceberg.GreaterThan,
    ast.GtE: iceberg.GreaterThanOrEqual,
    ast.In: iceberg.In,
    ast.Lt: iceberg.LessThan,
    ast.LtE: iceberg.LessThanOrEqual,
}
_EXACT = {int: (IntegerType, LongType), str: (StringType, DateType, TimestampType, TimestamptzType)}
"""By the type of a constant: the types of columns that Iceberg compares as the filter does."""


def iceberg_filter(text: str | None, schema: Schema) -> BooleanExpression:
    """Return the filter `text` as a condition of Iceberg. The condition may hold for more rows,
    because a part of the filter that Iceberg cannot evaluate becomes "always true"."""
    return iceberg.AlwaysTrue() if text is None else _condition(parse_expression(text), schema)


def _condition(tree: ast.expr, schema: Schema) -> BooleanExpression:
    match tree:
        case ast.BoolOp(op=operator, values=values):
            both = iceberg.And if isinstance(operator, ast.And) else iceberg.Or
            return reduce(both, (_condition(value, schema) for value in values))
        case ast.Compare(left=ast.Name(id=name), ops=[operator], comparators=[right]):
            try:
                value = ast.literal_eval(right)
                kinds = set(map(type, value if isinstance(value, list | tuple) else [value]))
                column = schema.find_field(name).field_type
                if all(isinstance(column, _EXACT[kind]) for kind in kinds):
                    condition = _COMPARISONS[type(operator)](name, value)
                    bind(schema, condition, case_sensitive=True)
                    return condition  # type: ignore[no-any-return]
            except (KeyError, TypeError, ValueError):  # Iceberg has no such comparison
                pass
    return iceberg.AlwaysTrue()
