"""The input snapshot of a job: the sorted list of its files, and its comparison with earlier ones.

The position of a file in this list is part of the id of each of its rows. The list is therefore
created once per job, stored next to the output, and reused when the job resumes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.errors import RESTART, BadInput, BadOutput
from batchinference.pipeline.input import JobInput
from batchinference.pipeline.input.ignored_files import (
    NONE_IGNORED,
    IgnoredFiles,
    similar_names,
)
from batchinference.pipeline.input.readers import FileStats
from batchinference.pipeline.input.table_version import TableVersion
from batchinference.pipeline.row_batch import MAX_FILES, RowRange
from batchinference.pipeline.storage.arrow_files import open_parquet, read_table, schema_of
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import damaged_state
from batchinference.spec.storage import Storage
from batchinference.text import counted

STATS = pa.schema(
    {"file_rows": pa.int64(), "row_groups": pa.list_(pa.int64()), "schema": pa.binary()}
)
"""The columns of an input snapshot with the statistics of files. They do not identify the input."""
TABLE_COLUMNS = {"constants", "deleted"}
"""The columns of an input snapshot of a table that are fields of `InputFile`."""
MIN_STARTS, MAX_STARTS = 64, 1 << 20
"""Limits for the stored starts of row groups: the minimum limit per file, and the approximate limit
for all files."""
_IGNORED = b"ignored"
"""The key of the ignored files in the metadata of a stored snapshot."""
_VERSION = b"version"
"""The key of the version of a table in the metadata of a stored snapshot."""
PARTS_AT_ONCE = 10_000
"""Parts of an input that are Python objects at the same time."""
START_OVER_HINT = (
    f"run `{RESTART}` to compute all rows again (on a cluster or with append: set resume to false)"
)
Version = tuple[int, int | None]
"""The size of a file in bytes and its modification time in nanoseconds, if it is known."""
REMOVED: Version = (0, -1)
"""The version of a file that is gone and whose rows were removed. It keeps its number."""


@dataclass(frozen=True)
class InputFile:
    """One file of the input, or a part of it that one read task reads.

    `number` is its position in the list, `path` its path in the file system, `size` the number of
    bytes to read, and `rows` the number of rows to read (None for all). A part has the rows `start`
    up to, not including, `stop` (None for the end of the file). If `gaps` is not empty, only the
    rows in these ranges are read. Of a table, `constants` are columns with the same value in all
    rows, and `deleted` is the bitmap of the positions that hold no rows (see `readers.table`). A
    row is numbered without these."""

    number: int
    path: str
    size: int
    rows: int | None = None
    start: int = 0
    stop: int | None = None
    gaps: tuple[RowRange, ...] = ()
    constants: Mapping[str, Any] | None = None
    deleted: bytes | None = None


@dataclass(frozen=True)
class InputSnapshot:
    """All files of the input. `root` identifies the file system.

    `table` has the columns path, size (bytes) and modified (nanoseconds, or null). If the input is
    limited, it also has the columns rows and bytes: how much of each file is read. The columns of
    STATS hold the statistics of files, or null. `ignored` are the files that are not read. If the
    files are those of a `version` of a table, there are the columns constants (a struct, unless no
    file has any) and deleted of `InputFile`."""

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
        paths, limited = self.table.column("path").to_pylist(), "rows" in self.table.column_names
        rows = self.table.column("rows").to_pylist() if limited else [None] * len(self)
        rows = [0 if file in self.removed else known for file, known in enumerate(rows)]
        read = zip(paths, self._read_bytes(), rows, strict=True)
        files = [InputFile(number, *values) for number, values in enumerate(read)]
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
        """The numbers of the files whose rows were removed."""
        if "modified" not in self.table.column_names:  # sources that are not files
            return frozenset()
        import pyarrow.compute as pc  # commands that only read need it rarely

        removed = pc.equal(self.table.column("modified"), REMOVED[1])
        return frozenset(pc.indices_nonzero(removed).to_pylist())

    def with_versions(self, versions: Mapping[int, Version]) -> InputSnapshot:
        """Return the snapshot with other versions of files, by number, and without their
        statistics."""
        table = self.table
        sizes, times = zip(*(versions.get(n, v) for n, v in enumerate(self.versions)), strict=True)
        for name, values in (("size", sizes), ("modified", times)):
            index = table.column_names.index(name)
            table = table.set_column(index, name, pa.array(values, pa.int64()))
        changed = replace(self, table=table)
        stats = {number: one for number, one in self.stats.items() if number not in versions}
        return changed.with_stats(stats) if stats else changed

    @cached_property
    def stats(self) -> dict[int, FileStats]:
        """The known statistics, by file number."""
        if "file_rows" not in self.table.column_names:
            return {}
        columns = (self.table.column(name).to_pylist() for name in STATS.names)
        return {
            number: FileStats(rows, starts, schema and schema_of(schema))
            for number, (rows, starts, schema) in enumerate(zip(*columns, strict=True))
            if rows is not None
        }

    def with_stats(self, stats: Mapping[int, FileStats]) -> InputSnapshot:
        """Return the snapshot with these statistics, by file number, instead of its own."""
        most = max(MIN_STARTS, MAX_STARTS // max(1, len(self)))
        by_number = [stats.get(number) for number in range(len(self))]
        columns = (
            [known and known.rows for known in by_number],
            [known and _thin_out(known.starts, most) for known in by_number],
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
        """Return a snapshot of the first `len(rows)` files.

        `rows` is the number of rows to read from each file, `size` the number of bytes to read from
        the last one."""
        table = self.table.slice(0, len(rows))
        read = [*table.column("size").to_pylist()[:-1], size]
        table = table.append_column("rows", pa.array(rows, pa.int64()))
        return replace(self, table=table.append_column("bytes", pa.array(read, pa.int64())))

    def address(self, file: InputFile) -> Location:
        return self.root.at(file.path)

    @property
    def uris(self) -> list[str]:
        """The paths of the files in the form that users write."""
        return [self.root.at(path).uri for path in self.table.column("path").to_pylist()]

    @property
    def labels(self) -> list[str]:
        """The name of each file. A file with changes of a table may occur several times, with other
        changes."""
        if self.version is None or self.version.since is None:
            return self.uris
        changes = (
            ", ".join(f"{name} {value}" for name, value in (file.constants or {}).items())
            for file in self.files()
        )
        return [f"{uri} ({change})" for uri, change in zip(self.uris, changes, strict=True)]

    def serialized(self) -> bytes:
        """Return the list as a Parquet file, with each path in the form that users write."""
        table = self.table.set_column(0, "path", pa.array(self.uris, pa.string()))
        metadata = {}
        if self.ignored != NONE_IGNORED:
            metadata[_IGNORED] = self.ignored.serialized()
        if self.version is not None:
            metadata[_VERSION] = self.version.serialized()
        return as_parquet(table.replace_schema_metadata(metadata) if metadata else table)

    @classmethod
    def parse(cls, content: bytes, storage: Storage) -> InputSnapshot:
        """Return a snapshot from its stored form. Raises ValueError (such as ArrowInvalid) if it is
        not readable, or lists more than MAX_FILES files, which may be few bytes but need much
        memory."""
        table = read_table(pa.BufferReader(content))
        if table.num_rows > MAX_FILES:
            raise pa.ArrowInvalid(f"it lists {table.num_rows} files")
        places = [Location(uri, storage) for uri in table.column("path").to_pylist()]
        paths = pa.array([place.path for place in places], pa.string())
        metadata = table.schema.metadata or {}
        ignored, version = metadata.get(_IGNORED), metadata.get(_VERSION)
        return cls(
            places[0] if places else Location("/", storage),
            table.set_column(0, "path", paths).replace_schema_metadata(),
            IgnoredFiles.parse(ignored) if ignored else NONE_IGNORED,
            TableVersion.parse(version) if version else None,
        )


def _thin_out(starts: list[int] | None, most: int) -> list[int] | None:
    """Return at most `most` of the starts, evenly spread."""
    return starts and starts[:: -(-len(starts) // most)]


def _serialized(schema: pa.Schema | None) -> bytes | None:
    return None if schema is None else schema.serialize().to_pybytes()


def as_parquet(table: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


@lru_cache(maxsize=4)
def paths_of(frozen: Location) -> pa.ChunkedArray:
    """Return the paths of an input snapshot, by file number.

    They are needed only to report errors. The cache makes each process fetch them once."""
    return read_table(pa.BufferReader(frozen.read()), columns=["path"]).column("path")


@dataclass(frozen=True)
class ReplacementRule:
    """What happens to the rows of files that have changed or are gone. `possible` is whether they
    could be replaced."""

    recomputes: bool = False
    removes: bool = False
    possible: bool = False

    def fix(self, setting: str, other: str) -> str:
        """Return the end of a message: the setting of `read` with which the rows are replaced, if
        that is possible, or else another fix."""
        return f"set read.{setting}, or {other}" if self.possible else other


@dataclass(frozen=True)
class FileChanges:
    """The files of a snapshot that differ from the current ones: those that have `changed`, with
    their versions, and those that are `gone`, of which the rows of `kept` stay."""

    changed: Mapping[int, Version]
    gone: frozenset[int]
    kept: frozenset[int] = frozenset()
    relisted: bool = False
    """Whether the current snapshot differs from the one that the output has stored."""

    @classmethod
    def between(cls, frozen: InputSnapshot, now: InputSnapshot) -> FileChanges:
        found = dict(zip(now.uris, now.versions, strict=True))
        changed, gone = {}, set()
        for number, (uri, known) in enumerate(zip(frozen.uris, frozen.versions, strict=True)):
            if known == REMOVED:
                continue  # a file that comes back is a new file
            if uri not in found:
                gone.add(number)
            elif found[uri] != known:
                changed[number] = found[uri]
        return cls(changed, frozenset(gone))

    @property
    def removed(self) -> frozenset[int]:
        """The files whose rows are removed."""
        return self.gone - self.kept

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)

    def applied(self, frozen: InputSnapshot) -> InputSnapshot:
        """Return the snapshot with the current versions."""
        versions = {**self.changed, **dict.fromkeys(self.removed, REMOVED)}
        return frozen.with_versions(versions) if versions else frozen


NO_CHANGES = FileChanges({}, frozenset())


@dataclass(frozen=True)
class ResumedInput:
    """The input snapshot of a job that resumes.

    `unfinished` returns the numbers of the files with rows missing in the output. Its argument is
    the number of rows of each file, if that is known before reading. `rule` says what happens to
    the rows of files that have changed or are gone. `relisted` is whether the stored list is that
    of an attempt that died before it had replaced the list of the output."""

    frozen: InputSnapshot
    unfinished: Callable[[int | None], Collection[int]]
    rule: ReplacementRule = ReplacementRule()
    relisted: bool = False

    def check(self, now: InputSnapshot, rows_each: int | None) -> FileChanges:
        """Return the files that differ from the current files `now`.

        `rows_each` is the number of rows of every file, if it is known before reading. Files that
        were added since the job started are ignored. Raises BadInput with the path if a file has
        changed whose rows are not replaced, or was deleted before all its rows were read."""
        changes = FileChanges.between(self.frozen, now)
        unfinished = self.unfinished(rows_each)
        uris, versions = self.frozen.uris, self.frozen.versions
        for number, version in changes.changed.items():
            if not self.rule.recomputes:
                fix = self.rule.fix("onChange: recompute", START_OVER_HINT)
                raise _changed_file_error(uris[number], versions[number], version, fix)
        for number in () if self.rule.removes else sorted(changes.gone.intersection(unfinished)):
            fix = self.rule.fix("onDelete: removeRows", START_OVER_HINT)
            raise BadInput(f"'{uris[number]}' is gone, and the output lacks rows of it: {fix}")
        changes = replace(changes, kept=frozenset() if self.rule.removes else changes.gone)
        return replace(changes, relisted=self.relisted or bool(changes))


class NoNewFiles(Exception):
    """Raised if all files of the input were processed before. `ignored` are those that are not
    read."""

    def __init__(self, ignored: IgnoredFiles) -> None:
        text = f" ({ignored.text})" if ignored.text else ""
        super().__init__(f"there are no new files in its input{text}")


@dataclass(frozen=True)
class ProcessedFiles:
    """Files whose rows are already in the output. `rule` says what happens to them if they have
    changed since."""

    lists: list[InputSnapshot]
    rule: ReplacementRule = ReplacementRule()

    def without(self, now: InputSnapshot) -> InputSnapshot:
        """Return the files that are new.

        Raises BadInput with the path if a processed file has changed whose rows are not replaced,
        and NoNewFiles if no file is new."""
        known: dict[str, Version] = {}
        for frozen in self.lists:
            pairs = zip(frozen.uris, frozen.versions, strict=True)
            known.update((uri, version) for uri, version in pairs if version != REMOVED)
        uris = now.uris
        for uri, version in zip(uris, now.versions, strict=True):
            if known.get(uri, version) != version and not self.rule.recomputes:
                fix = self.rule.fix("onChange: recompute", "set write.mode to overwrite")
                raise _changed_file_error(uri, known[uri], version, fix)
        new = [uri for uri in uris if uri not in known]
        if not new:
            raise NoNewFiles(now.ignored)
        table = now.table.filter(pa.array([uri not in known for uri in uris]))
        ignored = now.ignored.with_similar(similar_names(new, (*known, *uris)))
        return replace(now, table=table, ignored=ignored)


def _changed_file_error(uri: str, before: Version, now: Version, fix: str) -> BadInput:
    return BadInput(
        f"'{uri}' has changed since the job began ({before[0]} bytes then, {now[0]} now), and the "
        f"output has rows of its earlier content: {fix}"
    )


def read_snapshot(place: Location, storage: Storage, wanted: str | None = None) -> InputSnapshot:
    """Return the stored input snapshot.

    Raises BadOutput if it is missing or damaged, or does not have the digest `wanted`, for example
    because it belongs to another output."""
    try:
        content = place.read()
        if wanted in (None, digest(content)):
            return InputSnapshot.parse(content, storage)
    except (FileNotFoundError, KeyError, ValueError):  # ArrowInvalid is a ValueError
        pass
    raise damaged_state(place)


def read_own_snapshot(
    attempt: Attempt, storage: Storage, wanted: str
) -> tuple[InputSnapshot, bool]:
    """Return the input snapshot with the digest `wanted` of an output, and whether only its last
    attempt has it: this attempt has changed it, and died before it replaced that of the output.

    Raises BadOutput if it is missing or damaged."""
    try:
        return read_snapshot(attempt.layout.input, storage, wanted), False
    except BadOutput:
        if not attempt.input.exists():
            raise
    return read_snapshot(attempt.input, storage, wanted), True


def describe_changes(source: JobInput, complete: Sequence[Layout], restart: str) -> str:
    """Return a remark if the input differs from the input of the complete output, else empty.
    `restart` says how all rows are computed again."""
    read = (layout.input.read_if_exists() for layout in complete)
    contents = [content for content in read if content is not None]
    if not contents:
        return ""
    try:
        if (table := _version_of(source.serialized())) is not None:
            if table.version in [read.version for read in map(_version_of, contents) if read]:
                return ""
            return (
                f"{table.name} has version {table.version} now, whose changes are not in the "
                "output. Set write.mode to append to add its new rows"
            )
        before = np.unique(np.concatenate([_hashes_of_parts(content) for content in contents]))
    except pa.ArrowInvalid:
        return "its input.parquet is damaged, so it is unknown whether the input has changed"
    now = _hashes_of_parts(source.serialized())
    if (added := np.flatnonzero(~np.isin(now, before))).size:
        part = next(islice(_parts(source.serialized()), int(added[0]), None))
        earlier = (each for content in contents for each in _parts(content) if each[0] == part[0])
        return _describe_part(part, next(earlier, None), len(added) - 1, restart)
    if gone := len(before) - len(np.unique(now)):
        return (
            f"the input has changed since: the output has rows of {counted(gone, 'part')} that it "
            f"no longer has. {restart}"
        )
    return ""


def _describe_part(
    part: tuple[object, ...], earlier: tuple[object, ...] | None, others: int, restart: str
) -> str:
    """Return a remark about a part of the input that is new, or was another one earlier, and a
    number of other such parts."""
    what = "is new"
    if earlier is not None:
        sizes = f" ({earlier[1]} bytes then, {part[1]} now)" if len(part) > 2 else ""
        what = f"has changed{sizes}"
    more = f", like {counted(others, 'other part')}" if others else ""
    append = "" if earlier else "Set write.mode to append to add the rows of new files. "
    return (
        f"the input has changed since: '{part[0]}' {what}{more}, and the output lacks its rows. "
        f"{append}{restart}"
    )


def _version_of(content: bytes) -> TableVersion | None:
    metadata = open_parquet(pa.BufferReader(content)).schema_arrow.metadata or {}
    return TableVersion.parse(metadata[_VERSION]) if _VERSION in metadata else None


def check_previous_versions(source: JobInput, previous: Sequence[Layout]) -> None:
    """Raise BadOutput if a job, before its spec changed, added rows of the same files, or of the
    same table, to one of these outputs."""
    known = {identity for identity, _ in _origins(source.serialized())} if previous else set()
    for other in previous:
        origins = _origins(other.input.read())
        if (name := next((name for identity, name in origins if identity in known), None)) is None:
            continue
        raise BadOutput(
            f"spec.write.path: '{other.output.uri}' holds rows of {name} by this job as it was "
            "before its spec changed. Choose another path, set write.mode to overwrite, or give "
            "the job another metadata.name to have both"
        )


def _origins(content: bytes) -> Iterator[tuple[object, str]]:
    """Yield the identity and the name of what each part of an input comes from: the table, because
    its files are rewritten, or else the file."""
    table = _version_of(content)
    for part in _parts(content):
        yield (table.table, table.name) if table else (part[0], f"'{part[0]}'")


def _parts(content: bytes) -> Iterator[tuple[object, ...]]:
    """Yield the identity of each part of an input: its values, without statistics. Removed files
    are no parts."""
    table = read_table(pa.BufferReader(content))
    other = (*STATS.names, "constants")
    table = table.drop_columns([name for name in other if name in table.column_names])
    for batch in table.to_batches(max_chunksize=PARTS_AT_ONCE):
        columns = batch.to_pydict()
        times = columns.get("modified") or [None] * batch.num_rows
        parts = zip(times, zip(*columns.values(), strict=True), strict=True)
        yield from (part for time, part in parts if time != REMOVED[1])


def _hashes_of_parts(content: bytes) -> np.ndarray:
    """Return a hash of each part of an input, because millions of parts take gigabytes."""
    return np.fromiter(map(hash, _parts(content)), np.int64)
