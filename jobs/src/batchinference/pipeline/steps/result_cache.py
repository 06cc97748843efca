"""Stores of results of a model step: those of recent rows in the memory of a process, and those of
other jobs in files.

A cache has a directory for each digest of a step. Its files are never changed: each has the keys of
some rows, and then their results as an Arrow IPC stream. The name has the hash of the digest and of
the content, so a file that is damaged, incomplete or in another directory is not used. Jobs that
write the same results at the same time write two files, and both are right.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import concat
from batchinference.pipeline.row_warnings import RowWarning, split_warnings, with_warnings
from batchinference.pipeline.schema import register_tensors
from batchinference.pipeline.steps.row_hashes import HASH_BYTES
from batchinference.pipeline.storage.arrow_files import read_stream
from batchinference.pipeline.storage.location import Location, base_name

MEMORY_BYTES = 128 << 20
"""Approximate maximum memory of the results that a process keeps for a step."""
ROW_BYTES, GROUP_BYTES = 300, 4096
"""Additional memory of a result, and of a group of results."""
FILE_BYTES, LONGEST_WAIT, SHARE = 4 << 20, 60.0, 0.1
"""A file is written as soon as its results have this size, or are this old in seconds, or as old as
this share of the time since the first result: so few results are lost with a process."""
READ_THREADS = 16
_FILE = re.compile(r"([0-9a-f]{64})-([1-9][0-9]{0,8})\.results")
"""The name of a file: its hash, and the number of its rows."""


@dataclass(frozen=True)
class KnownResults:
    """Results that were computed or read together: the columns that the step adds, and the warnings
    of each row."""

    keys: Sequence[bytes]
    table: pa.Table
    warnings: Mapping[int, Sequence[RowWarning]]
    stored: bool = False
    """Whether they were read from a cache."""

    @property
    def nbytes(self) -> int:
        """The approximate memory in bytes."""
        return int(self.table.nbytes) + ROW_BYTES * len(self.keys) + GROUP_BYTES

    def places(self) -> dict[bytes, Place]:
        """Return the place of the result of each key."""
        return {key: (self, row) for row, key in enumerate(self.keys)}


Place = tuple[KnownResults, int]
"""Results, and a row of them."""


class RecentResults:
    """The results of recent rows by key, up to about `most` bytes. Threads share them."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._groups: OrderedDict[int, KnownResults] = OrderedDict()
        self._places: dict[bytes, Place] = {}
        self._lock = Lock()

    def add(self, results: KnownResults) -> None:
        """Keep results, and forget the oldest ones if there are too many."""
        if not results.keys:
            return
        with self._lock:
            self._groups[id(results)] = results
            self._places |= results.places()
            self._bytes += results.nbytes
            while self._bytes > self._most:
                _, oldest = self._groups.popitem(last=False)
                self._bytes -= oldest.nbytes
                for key in oldest.keys:
                    if self._places.get(key, (None,))[0] is oldest:
                        del self._places[key]

    def find(self, keys: Iterable[bytes]) -> dict[bytes, Place]:
        """Return the places of the results of these keys, as far as they are known."""
        with self._lock:
            return {key: self._places[key] for key in keys if key in self._places}


class ResultCache:
    """The results of a step in the files of a directory. Threads share it.

    A job sees the files that were there when its process computed its first rows. Storage that
    cannot be read or written is not tried again, and never ends the job: `errors` counts that."""

    def __init__(self, place: Location, digest: str, names: Sequence[str]) -> None:
        self._place, self._digest, self._names = place / digest, digest, list(names)
        self._lock = Lock()
        self._index: tuple[np.ndarray, np.ndarray] | None = None
        """The beginnings of all keys in order, and the number of the file of each."""
        self._files: list[str] = []
        self._waiting: list[KnownResults] = []
        self._began = self._since = 0.0
        self._is_broken = False
        self.errors = 0
        """Files that are damaged, and operations of storage that have failed."""

    def find(self, keys: Iterable[bytes]) -> list[KnownResults]:
        """Return the stored results that have these keys, together with others."""
        wanted = np.array([_beginning(key) for key in keys], dtype=np.uint64)
        with self._lock:
            beginnings, files = self._index = self._index or self._read_index()
        if self._is_broken or not len(beginnings) or not len(wanted):
            return []
        places = np.minimum(np.searchsorted(beginnings, wanted), len(beginnings) - 1)
        numbers = np.unique(files[places[beginnings[places] == wanted]]).tolist()
        with ThreadPoolExecutor(READ_THREADS) as pool:
            found = pool.map(self._read_file, [self._files[number] for number in numbers])
            return [results for results in found if results is not None]

    def add(self, results: KnownResults) -> None:
        """Store results, maybe later together with others."""
        with self._lock:
            now = time.monotonic()
            if not self._waiting:
                self._since, self._began = now, self._began or now
            self._waiting.append(results)
            wait = min(LONGEST_WAIT, SHARE * (now - self._began))
            is_due = sum(each.nbytes for each in self._waiting) >= FILE_BYTES
        if is_due or now - self._since > wait:
            self.flush()

    def flush(self) -> None:
        """Write the results that wait."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for schema in {each.table.schema: None for each in waiting}:  # so that no type is widened
            same = [each for each in waiting if each.table.schema == schema]
            self._write(same)

    def _write(self, groups: Sequence[KnownResults]) -> None:
        if self._is_broken:
            return
        content = _content_of(groups)
        rows = sum(len(each.keys) for each in groups)
        try:
            (self._place / f"{self._hash_of(content)}-{rows}.results").write(content)
        except OSError:
            self._fail()

    def _fail(self) -> None:
        self._is_broken = True
        self.errors += 1

    def _hash_of(self, content: bytes) -> str:
        return hashlib.sha256(self._digest.encode() + content).hexdigest()

    def _read_index(self) -> tuple[np.ndarray, np.ndarray]:
        found: list[np.ndarray] = []
        try:
            names = (
                [] if self._is_broken else [base_name(info.path) for info in self._place.files()]
            )
            self._files = [name for name in names if _FILE.fullmatch(name)]
            with ThreadPoolExecutor(READ_THREADS) as pool:
                found = list(pool.map(self._read_beginnings, self._files))
        except OSError:
            self._fail()
        beginnings = np.concatenate([np.empty(0, np.uint64), *found])
        order = np.argsort(beginnings, kind="stable")
        files = np.repeat(np.arange(len(found), dtype=np.int32), [len(each) for each in found])
        return beginnings[order], files[order]

    def _read_beginnings(self, name: str) -> np.ndarray:
        """Return the beginnings of the keys of a file, which may be damaged."""
        try:
            keys = (self._place / name).read(_rows_in(name) * HASH_BYTES)
        except FileNotFoundError:  # a rule of the store has deleted it
            return np.empty(0, np.uint64)
        whole = len(keys) // HASH_BYTES * HASH_BYTES
        return np.frombuffer(keys[:whole], "<u8")[:: HASH_BYTES // 8].astype(np.uint64)

    def _read_file(self, name: str) -> KnownResults | None:
        """Return the results in a file; None if it is damaged, or does not exist any more."""
        try:
            content = (self._place / name).read_if_exists()
            if content is None:
                return None
            if self._hash_of(content) != name.partition("-")[0]:
                raise ValueError("it is damaged")
            return _results_in(content, _rows_in(name), self._names)
        except OSError:
            self._fail()
        except ValueError:
            self.errors += 1
        return None


def _beginning(key: bytes) -> int:
    return int.from_bytes(key[:8], "little")


def _rows_in(name: str) -> int:
    return int(name.partition("-")[2].partition(".")[0])


def _content_of(groups: Sequence[KnownResults]) -> bytes:
    """Return results as the content of a file. The columns have numbers instead of names."""
    keys = b"".join(key for each in groups for key in each.keys)
    table = concat([with_warnings(each.table, each.warnings) for each in groups])
    names = [str(number) for number in range(groups[0].table.num_columns)]
    table = table.rename_columns([*names, *table.column_names[len(names) :]])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    return keys + bytes(sink.getvalue())


def _results_in(content: bytes, rows: int, names: Sequence[str]) -> KnownResults:
    """Return the results in the content of a file. Raises ValueError if it holds others."""
    keys = [content[at : at + HASH_BYTES] for at in range(0, rows * HASH_BYTES, HASH_BYTES)]
    stream = content[rows * HASH_BYTES :]
    table = read_stream(stream)
    if register_tensors(table.schema):
        table = read_stream(stream)
    table.validate(full=True)
    table, warnings = split_warnings(table)
    if table.num_rows != rows or table.num_columns != len(names):
        raise ValueError("it has other rows or columns than its name says")
    by_row: dict[int, list[RowWarning]] = {}
    for warning in warnings:
        by_row.setdefault(warning.row, []).append(warning)
    return KnownResults(keys, table.rename_columns(names), by_row, stored=True)
