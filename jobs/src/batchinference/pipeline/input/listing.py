"""The input snapshot of a job: the sorted list of its files.

The position of a file in this list is part of the id of each of its rows. The list is therefore
created once per job, stored next to the output, and reused when the job resumes.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.readers.base import FileStats
from batchinference.pipeline.row_batch import MAX_FILES, RowRange
from batchinference.pipeline.storage.arrow_files import read_table, schema_of
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.storage.retry import with_retries
from batchinference.spec.addresses import scheme_of
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage

_GLOB = frozenset("*?[")
_HIDDEN = frozenset("._")
"""First characters in the names of hidden files and of marker files such as _SUCCESS."""

STATS = pa.schema(
    {"file_rows": pa.int64(), "row_groups": pa.list_(pa.int64()), "schema": pa.binary()}
)
"""The columns of an input snapshot with the statistics of files. They do not identify the input."""
MIN_STARTS, MAX_STARTS = 64, 1 << 20
"""Limits for the stored starts of row groups: per file, and about that many for all files."""


@dataclass(frozen=True)
class InputFile:
    """One file of the input, or a part of it that one read task reads.

    `number` is its position in the list, `path` its path in the file system, `size` the number of
    bytes to read, and `rows` the number of rows to read (None for all). A part has the rows `start`
    up to, not including, `stop` (None for the end of the file). If `gaps` is not empty, only the
    rows in these ranges are read."""

    number: int
    path: str
    size: int
    rows: int | None = None
    start: int = 0
    stop: int | None = None
    gaps: tuple[RowRange, ...] = ()


@dataclass(frozen=True)
class InputSnapshot:
    """All files of the input. `root` identifies the file system.

    `table` has the columns path, size (bytes) and modified (nanoseconds, or null). If the input is
    limited, it also has the columns rows and bytes: how much of each file is read. The columns of
    STATS hold the statistics of files, or null."""

    root: Location
    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def size(self) -> int:
        """The number of bytes to read from all files."""
        return sum(self._read_bytes())

    def files(self) -> list[InputFile]:
        paths, limited = self.table.column("path").to_pylist(), "rows" in self.table.column_names
        rows = self.table.column("rows").to_pylist() if limited else [None] * len(self)
        read = zip(paths, self._read_bytes(), rows, strict=True)
        return [InputFile(number, *each) for number, each in enumerate(read)]

    def _read_bytes(self) -> list[int]:
        column = "bytes" if "bytes" in self.table.column_names else "size"
        return list(self.table.column(column).to_pylist())

    @property
    def file_sizes(self) -> list[int]:
        """The number of bytes of each file, by file number."""
        return list(self.table.column("size").to_pylist())

    @property
    def versions(self) -> list[tuple[int, int | None]]:
        """The size and the modification time of each file."""
        columns = (self.table.column(name).to_pylist() for name in ("size", "modified"))
        return list(zip(*columns, strict=True))

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
        """Return the snapshot with these statistics, by file number, instead of those it has."""
        most = max(MIN_STARTS, MAX_STARTS // len(self))
        each = [stats.get(number) for number in range(len(self))]
        columns = (
            [one and one.rows for one in each],
            [one and _thinned(one.starts, most) for one in each],
            [one and _serialized(one.schema) for one in each],
        )
        table = self.table.drop_columns([n for n in STATS.names if n in self.table.column_names])
        for field, values in zip(STATS, columns, strict=True):
            table = table.append_column(field, pa.array(values, field.type))
        return InputSnapshot(self.root, table)

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
        return InputSnapshot(self.root, table.append_column("bytes", pa.array(read, pa.int64())))

    def address(self, file: InputFile) -> Location:
        return self.root.at(file.path)

    @property
    def uris(self) -> list[str]:
        """The paths of the files in the form that users write."""
        return [self.root.at(path).uri for path in self.table.column("path").to_pylist()]

    def serialized(self) -> bytes:
        """Return the list as a Parquet file, with each path in the form that users write."""
        return as_parquet(self.table.set_column(0, "path", pa.array(self.uris, pa.string())))

    @classmethod
    def parse(cls, content: bytes, storage: Storage) -> InputSnapshot:
        """Return a snapshot from its stored form. Raises ArrowInvalid if that is not readable, or
        has more files than any input: rows that repeat take few bytes, but much memory here."""
        table = read_table(pa.BufferReader(content))
        if table.num_rows > MAX_FILES:
            raise pa.ArrowInvalid(f"it lists {table.num_rows} files")
        places = [Location(uri, storage) for uri in table.column("path").to_pylist()]
        paths = pa.array([place.path for place in places], pa.string())
        return cls(places[0], table.set_column(0, "path", paths))


def snapshot_input(
    paths: list[str],
    extensions: list[str],
    storage: Storage = FROM_ENVIRONMENT,
    *,
    ignore_missing: bool = False,
) -> InputSnapshot:
    """Return the files at these paths, sorted by path.

    A file has one entry, or as many as a path that selects it is listed. `extensions` filter the
    files in directories. A path of a single file is always included.
    Raises BadInput with the path if a path does not exist or contains no files to read. With
    `ignore_missing`, raises BadInput only if this is true for all paths.
    """
    _check_one_store(paths)
    endings = tuple("." + extension.lower().removeprefix(".") for extension in extensions)
    found: dict[str, list[pafs.FileInfo]] = {}
    times = Counter(paths)
    for number, path in enumerate(paths):
        label = f"read.paths[{number}] '{path}'"
        files = _list(Location(path, storage), endings, label)
        if not files and not ignore_missing:
            wanted = f" that end in {', '.join(endings)}" if endings else ""
            empty = f"holds no files{wanted}"
            raise BadInput(f"{label} {'does not exist' if files is None else empty}")
        for info in files or []:
            found[info.path] = max(found.get(info.path, []), [info] * times[path], key=len)
    if not found:
        raise BadInput("read.paths: there is nothing behind any of them")
    infos = [info for path in sorted(found) for info in found[path]]
    if len(infos) > MAX_FILES:
        raise BadInput(f"the input has {len(infos)} files; at most {MAX_FILES} can be told apart")
    return InputSnapshot(Location(paths[0], storage), _table(infos))


def _table(infos: list[pafs.FileInfo]) -> pa.Table:
    columns = {
        "path": pa.array([info.path for info in infos], pa.string()),
        "size": pa.array([info.size or 0 for info in infos], pa.int64()),
        "modified": pa.array([info.mtime_ns for info in infos], pa.int64()),
    }
    return pa.table(columns)


def _thinned(starts: list[int] | None, most: int) -> list[int] | None:
    """Return at most `most` of the starts, evenly spread."""
    return starts and starts[:: -(-len(starts) // most)]


def _serialized(schema: pa.Schema | None) -> bytes | None:
    return None if schema is None else schema.serialize().to_pybytes()


def as_parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _check_one_store(paths: list[str]) -> None:
    schemes = sorted({scheme_of(path) for path in paths})
    if len(schemes) > 1:
        names = ["local paths" if scheme == "file" else f"{scheme}://" for scheme in schemes]
        raise BadInput(f"read.paths mixes {' and '.join(names)}: a job reads from one storage")


@lru_cache(maxsize=4)
def paths_of(frozen: Location) -> pa.ChunkedArray:
    """Return the paths of an input snapshot, by file number.

    They are needed only to report errors. The cache makes each process fetch them once."""
    return read_table(pa.BufferReader(frozen.read()), columns=["path"]).column("path")


def _list(address: Location, endings: tuple[str, ...], label: str) -> list[pafs.FileInfo] | None:
    """Return the files at an address; None if it does not exist. Raises BadInput on OSError."""
    try:
        info = address.info()
        if info.type == pafs.FileType.NotFound:
            if _GLOB.intersection(address.path):
                return _expand(address, endings)
            return None
        if info.type == pafs.FileType.Directory:
            return _below(address, endings)
    except OSError as error:
        raise BadInput(f"{label} cannot be listed: {error}") from error
    if info.type != pafs.FileType.File:  # a named pipe would block forever
        raise BadInput(f"{label} is not a regular file")
    return [info]


def _expand(address: Location, endings: tuple[str, ...]) -> list[pafs.FileInfo]:
    from fsspec.implementations.arrow import ArrowFSWrapper  # workers expand no globs

    found = with_retries(lambda: ArrowFSWrapper(address.filesystem).glob(address.path))
    matches = [path for path in found if not _is_hidden(path, address.path)]
    infos = address.filesystem.get_file_info(matches) if matches else []
    files = []
    for info in infos:
        if info.type == pafs.FileType.Directory:
            files += _below(address.at(info.path), endings)
        elif info.type == pafs.FileType.File:
            files.append(info)
    return files


def _is_hidden(path: str, pattern: str) -> bool:
    """Return whether a matched path has a hidden part that its pattern does not match explicitly.

    Patterns such as `.*` or `_part*` match hidden parts explicitly."""
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if _GLOB.intersection(part))
    named = {part[:1] for part in parts[fixed:]}
    return any(part[:1] in _HIDDEN - named for part in path.split("/")[fixed:])


def _below(directory: Location, endings: tuple[str, ...]) -> list[pafs.FileInfo]:
    """Return the files of a directory tree, except hidden ones."""
    root = directory.path.rstrip("/") + "/"
    return [
        info
        for info in directory.files(recursive=True)
        if not any(part[:1] in _HIDDEN for part in info.path[len(root) :].split("/"))
        and (not endings or base_name(info.path).lower().endswith(endings))
    ]
