"""The input snapshot of an output: the ordered list of its input files.

The position of a file in this list is part of the ids of its rows. Therefore the list is created
once, stored with the output, and reused when the job resumes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.pipeline.input.ignored_files import NONE_IGNORED, IgnoredFiles
from batchinference.pipeline.input.readers import FileStats
from batchinference.pipeline.input.table_version import TableVersion
from batchinference.pipeline.row_batch import MAX_FILES, RowRange
from batchinference.pipeline.storage.arrow_files import open_parquet, read_table, schema_of
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import damaged_state
from batchinference.spec.storage import Storage

_FILES = pa.schema({"path": pa.string(), "size": pa.int64(), "modified": pa.int64()})
STATS = pa.schema(
    {"file_rows": pa.int64(), "row_groups": pa.list_(pa.int64()), "schema": pa.binary()}
)
"""The columns with file statistics. They are ignored when input snapshots are compared."""
TABLE_COLUMNS = {"constants", "deleted"}
"""The columns that only snapshots of tables have. They are fields of `InputFile`."""
MIN_STARTS, MAX_STARTS = 64, 1 << 20
"""How many starts of row groups are stored. MAX_STARTS is divided evenly among the files. A file
gets at least MIN_STARTS."""
_IGNORED = b"ignored"
"""The key of the ignored files in the metadata of a stored snapshot."""
_VERSION = b"version"
"""The key of the version of a table in the metadata of a stored snapshot."""
Version = tuple[int, int | None]
"""The size of a file in bytes, and its modification time in nanoseconds (None if unknown)."""
REMOVED: Version = (0, -1)
"""The version of a file that is gone and whose rows were removed. The file keeps its number."""


def describe_change(uri: str, before: Version, now: Version) -> str:
    """Return the beginning of a message that says that a file has changed."""
    return f"'{uri}' has changed since the job began ({before[0]} bytes then, {now[0]} now)"


@dataclass(frozen=True)
class InputFile:
    """A file of the input, or the part of a file that one read task reads.

    `number` is the position of the file in the input snapshot, and `path` its path in the file
    system. `size` is the number of bytes to read, and `rows` the number of rows (None for all). A
    part has the rows from `start` to before `stop` (None for the end of the file). If `gaps` is not
    empty, only the rows in these ranges are read. `constants` and `deleted` are as in
    `input.tables.DataFile`. Row numbers do not count deleted rows. `version` is the version in the
    snapshot; None for data files of tables, which never change."""

    number: int
    path: str
    size: int
    rows: int | None = None
    start: int = 0
    stop: int | None = None
    gaps: tuple[RowRange, ...] = ()
    constants: Mapping[str, Any] | None = None
    deleted: bytes | None = None
    version: Version | None = None


@dataclass(frozen=True)
class InputSnapshot:
    """The files of the input. `root` is an address in the file system of the files.

    `table` has a row per file, with the columns `path`, `size` (bytes) and `modified` (nanoseconds,
    or null). If `options.limit` cuts the input, `rows` and `bytes` tell how much of each file is
    read. The columns of STATS, if present, have file statistics or null. `ignored` are files that
    are not read. Only a lakehouse table has a `version`, and the columns `deleted` and (if a file
    has constants) `constants`."""

    root: Location
    table: pa.Table
    ignored: IgnoredFiles = NONE_IGNORED
    version: TableVersion | None = None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def size(self) -> int:
        """The number of bytes to read from all files."""
        return sum(self._read_bytes())

    def files(self) -> list[InputFile]:
        """Return the files. Their `rows` are set if the input is limited, or rows were removed."""
        paths, limited = self.table.column("path").to_pylist(), "rows" in self.table.column_names
        rows = self.table.column("rows").to_pylist() if limited else [None] * len(self)
        rows = [0 if number in self.removed else known for number, known in enumerate(rows)]
        listed = self.version is None and "modified" in self.table.column_names
        versions: Sequence[Version | None] = self.versions if listed else [None] * len(self)
        read = enumerate(zip(paths, self._read_bytes(), rows, versions, strict=True))
        files = [
            InputFile(number, path, size, known, version=version)
            for number, (path, size, known, version) in read
        ]
        for name in TABLE_COLUMNS.intersection(self.table.column_names):
            values = self.table.column(name).to_pylist()
            pairs = zip(files, values, strict=True)
            files = [replace(file, **{name: value}) for file, value in pairs]
        return files

    def _read_bytes(self) -> list[int]:
        column = "bytes" if "bytes" in self.table.column_names else "size"
        return list(self.table.column(column).to_pylist())

    @property
    def file_sizes(self) -> list[int]:
        """The number of bytes of each file, by file number."""
        return list(self.table.column("size").to_pylist())

    @property
    def versions(self) -> list[Version]:
        """The size and the modification time of each file."""
        columns = (self.table.column(name).to_pylist() for name in ("size", "modified"))
        return list(zip(*columns, strict=True))

    @cached_property
    def removed(self) -> frozenset[int]:
        """The numbers of the files that are gone and whose rows were removed."""
        if "modified" not in self.table.column_names:  # sources that are not files
            return frozenset()
        removed = self.table.column("modified").to_numpy() == REMOVED[1]
        return frozenset(np.flatnonzero(removed).tolist())

    def with_versions(self, versions: Mapping[int, Version]) -> InputSnapshot:
        """Return the snapshot with new versions of some files, by file number. The statistics of
        these files are dropped."""
        table = self.table
        sizes, times = zip(*(versions.get(n, v) for n, v in enumerate(self.versions)), strict=True)
        for name, values in (("size", sizes), ("modified", times)):
            index = table.column_names.index(name)
            table = table.set_column(index, name, pa.array(values, pa.int64()))
        changed = replace(self, table=table)
        stats = {number: one for number, one in self.stats.items() if number not in versions}
        return changed.with_stats(stats) if self.stats else changed

    @cached_property
    def stats(self) -> dict[int, FileStats]:
        """The statistics of the files for which they are known, by file number."""
        if "file_rows" not in self.table.column_names:
            return {}
        columns = (self.table.column(name).to_pylist() for name in STATS.names)
        return {
            number: FileStats(rows, starts, schema and schema_of(schema))
            for number, (rows, starts, schema) in enumerate(zip(*columns, strict=True))
            if rows is not None
        }

    def with_stats(self, stats: Mapping[int, FileStats]) -> InputSnapshot:
        """Return the snapshot with only these statistics, by file number."""
        max_starts = max(MIN_STARTS, MAX_STARTS // max(1, len(self)))
        by_number = [stats.get(number) for number in range(len(self))]
        columns = (
            [known and known.rows for known in by_number],
            [known and _thin_out(known.starts, max_starts) for known in by_number],
            [known and _serialized(known.schema) for known in by_number],
        )
        table = self.table.drop_columns([n for n in STATS.names if n in self.table.column_names])
        for field, values in zip(STATS, columns, strict=True):
            table = table.append_column(field, pa.array(values, field.type))
        return replace(self, table=table)

    @property
    def rows(self) -> int | None:
        """The number of rows to read, if the input is limited; else None."""
        limited = "rows" in self.table.column_names
        return sum(self.table.column("rows").to_pylist()) if limited else None

    def limited(self, rows: list[int], size: int) -> InputSnapshot:
        """Return a snapshot of the first files. `rows` has the number of rows to read from each of
        these files. `size` is the number of bytes to read from the last file."""
        table = self.table.slice(0, len(rows))
        read = [*table.column("size").to_pylist()[:-1], size]
        table = table.append_column("rows", pa.array(rows, pa.int64()))
        return replace(self, table=table.append_column("bytes", pa.array(read, pa.int64())))

    def address(self, file: InputFile) -> Location:
        """Return the location of a file of this snapshot."""
        return self.root.at(file.path)

    @property
    def uris(self) -> list[str]:
        """The addresses of the files as users write them, such as s3://bucket/key."""
        return [self.root.at(path).uri for path in self.table.column("path").to_pylist()]

    @property
    def labels(self) -> list[str]:
        """The name of each file in messages. If the snapshot has changes of a table, a data file
        can occur several times, so its name includes the change."""
        if self.version is None or self.version.since is None:
            return self.uris
        changes = (
            ", ".join(f"{name} {value}" for name, value in (file.constants or {}).items())
            for file in self.files()
        )
        return [f"{uri} ({change})" for uri, change in zip(self.uris, changes, strict=True)]

    def serialized(self) -> bytes:
        """Return the stored form: a Parquet file whose column `path` has `uris`."""
        table = self.table.set_column(0, "path", pa.array(self.uris, pa.string()))
        metadata = {}
        if self.ignored != NONE_IGNORED:
            metadata[_IGNORED] = self.ignored.serialized()
        if self.version is not None:
            metadata[_VERSION] = self.version.serialized()
        return as_parquet(table.replace_schema_metadata(metadata) if metadata else table)

    @classmethod
    def parse(cls, content: bytes, storage: Storage, max_files: int = MAX_FILES) -> InputSnapshot:
        """Return a snapshot from its stored form. Raises KeyError or ValueError (also ArrowInvalid)
        if it cannot be parsed. More than `max_files` files are refused, to save memory."""
        table = read_table(pa.BufferReader(content))
        if table.num_rows > max_files:
            raise pa.ArrowInvalid(f"it lists {table.num_rows} files")
        locations = [Location(uri, storage) for uri in table.column("path").to_pylist()]
        paths = pa.array([each.path for each in locations], pa.string())
        metadata = table.schema.metadata or {}
        ignored, version = metadata.get(_IGNORED), metadata.get(_VERSION)
        return cls(
            locations[0] if locations else Location("/", storage),
            table.set_column(0, "path", paths).replace_schema_metadata(),
            IgnoredFiles.parse(ignored) if ignored else NONE_IGNORED,
            TableVersion.parse(version) if version else None,
        )


def file_table(
    files: Sequence[tuple[str, int, int | None]], max_files: int = MAX_FILES
) -> pa.Table:
    """Return `InputSnapshot.table` for files: path, size and modification time of each. Raises
    BadInput if there are more than `max_files`."""
    if len(files) > max_files:
        raise BadInput(f"the input has {len(files)} files; at most {max_files} are supported")
    columns = {name: [file[at] for file in files] for at, name in enumerate(_FILES.names)}
    return pa.table(columns, _FILES)


def _thin_out(starts: list[int] | None, count: int) -> list[int] | None:
    """Return at most `count` of these starts, evenly spread. None stays None."""
    return starts and starts[:: -(-len(starts) // count)]


def _serialized(schema: pa.Schema | None) -> bytes | None:
    return None if schema is None else schema.serialize().to_pybytes()


def as_parquet(table: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


@lru_cache(maxsize=4)
def paths_of(stored: Location, _content: str) -> pa.ChunkedArray:
    """Return the addresses in a stored input snapshot, by file number. A process reads a snapshot
    once. The digest `_content` is a key of the cache, because a later run may store another
    snapshot at the same location."""
    return read_table(pa.BufferReader(stored.read()), columns=["path"]).column("path")


def read_snapshot(file: Location, storage: Storage, wanted: str | None = None) -> InputSnapshot:
    """Return the input snapshot stored in a file. Raises BadOutput if the file is missing or
    damaged, or if its digest is not `wanted` (it may belong to another output)."""
    try:
        content = file.read()
        if wanted in (None, digest(content)):
            return InputSnapshot.parse(content, storage)
    except (FileNotFoundError, KeyError, ValueError):  # ArrowInvalid is a ValueError
        pass
    raise damaged_state(file)


def read_own_snapshot(
    job_pass: JobPass, storage: Storage, wanted: str
) -> tuple[InputSnapshot, bool]:
    """Return the input snapshot with the digest `wanted`. True means that only the directory of the
    last pass has it, because the pass died before copying it to the output. Raises BadOutput if the
    snapshot is missing or damaged."""
    try:
        return read_snapshot(job_pass.layout.input, storage, wanted), False
    except BadOutput:
        if not job_pass.changed_input.exists():
            raise
    return read_snapshot(job_pass.changed_input, storage, wanted), True


def version_in(content: bytes) -> TableVersion | None:
    """Return the version of the table that a stored input snapshot lists; None for other inputs."""
    metadata = open_parquet(pa.BufferReader(content)).schema_arrow.metadata or {}
    return TableVersion.parse(metadata[_VERSION]) if _VERSION in metadata else None
