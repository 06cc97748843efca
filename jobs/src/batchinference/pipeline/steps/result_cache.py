"""Stores of results of a model step: those of recent rows in the memory of a process, and those of
other jobs in files.

A cache has a directory for each digest of a model. Its files are never changed: each has the keys
of some rows, and then their results as an Arrow IPC stream. Its name has the hash of the digest and
of the content, so a file that is damaged, incomplete or in another directory is not used. Jobs that
write the same results at the same time write two files, and both are right.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from weakref import WeakSet

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import concat
from batchinference.pipeline.row_hashes import HASH_BYTES
from batchinference.pipeline.row_warnings import RowWarning, split_warnings, with_warnings
from batchinference.pipeline.storage.arrow_files import read_stream
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.type_widening import register_tensors

MEMORY_BYTES, ROW_BYTES = 128 << 20, 300
"""Approximate maximum memory of the results that a process keeps for a step, and the memory of a
row in addition to its results."""
FILE_BYTES, FILE_SECONDS = 4 << 20, 30.0
"""Results are written when they have this size or this age."""
REFRESH_SECONDS = 60.0
READ_THREADS, BEGINNING = 16, 8
_FILE = re.compile(r"([0-9a-f]{64})-([1-9][0-9]{0,8})\.results")
"""The name of a file: its hash, and the number of its rows."""


@dataclass(frozen=True)
class KnownResults:
    """Results that were computed or read together: the columns that the step adds, and the warnings
    of each row. `stored` is whether they were read from a cache."""

    keys: Sequence[bytes]
    table: pa.Table
    warnings: Mapping[int, Sequence[RowWarning]]
    stored: bool = False

    @property
    def nbytes(self) -> int:
        """The approximate memory in bytes."""
        return int(self.table.nbytes) + ROW_BYTES * len(self.keys)

    def places(self) -> dict[bytes, Place]:
        """Return the place of the result of each key."""
        return {key: (self, row) for row, key in enumerate(self.keys)}

    def only(self, keys: Collection[bytes]) -> KnownResults:
        """Return the results of these keys, without the memory of the others."""
        rows = [row for row, key in enumerate(self.keys) if key in keys]
        warnings = {at: self.warnings[row] for at, row in enumerate(rows) if row in self.warnings}
        table = self.table.take(pa.array(rows, pa.int64()))
        return replace(self, keys=[self.keys[row] for row in rows], table=table, warnings=warnings)


Place = tuple[KnownResults, int]
"""Results, and a row of them."""


class RecentResults:
    """The results of recent rows by key, up to about `most` bytes. Threads share them."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes, self._lock = most, 0, Lock()
        self._places: dict[bytes, Place] = {}

    def add(self, results: KnownResults) -> None:
        """Keep results. If there would be too many, forget all earlier ones."""
        with self._lock:
            self._bytes += results.nbytes
            if self._bytes > self._most:
                self._places, self._bytes = {}, results.nbytes
            self._places |= results.places()

    def find(self, keys: Iterable[bytes]) -> dict[bytes, Place]:
        """Return the places of the results of these keys, as far as they are known."""
        with self._lock:
            return {key: self._places[key] for key in keys if key in self._places}


class ResultCache:
    """The results of a model in the files of a directory. Threads share it.

    A process looks for new files, also those of other processes of its job, from time to time. A
    storage that cannot be read or written is not used again, and never ends the job: `errors`
    counts that."""

    def __init__(self, place: Location, digest: str, names: Sequence[str]) -> None:
        self._place, self._digest, self._names = place / digest, digest, list(names)
        self._lock, self._is_broken, self.errors = Lock(), False, 0
        self._waiting: list[KnownResults] = []
        self._since, self._bytes = 0.0, 0
        self._files = [""]
        self._beginnings = np.full(1, b"\xff" * BEGINNING)
        """The beginnings of all keys in order, and a last one."""
        self._numbers = np.zeros(1, np.int32)
        """The number of the file of each."""
        self._due = 0.0
        _OPEN.add(self)

    def find(self, keys: Iterable[bytes]) -> list[KnownResults]:
        """Return the stored results that have these keys, together with others unless these need
        too much memory."""
        keys = set(keys)
        wanted = np.array([key[:BEGINNING] for key in keys], f"S{BEGINNING}")
        with self._lock:
            if time.monotonic() >= self._due and not self._is_broken:
                self._refresh()
            beginnings, numbers = self._beginnings, self._numbers
        if self._is_broken or not len(wanted):
            return []
        places = np.searchsorted(beginnings, wanted)
        files = np.unique(numbers[places[beginnings[places] == wanted]]).tolist()
        all_fit = len(files) * FILE_BYTES <= MEMORY_BYTES
        read = partial(self._read, wanted=None if all_fit else keys)
        with ThreadPoolExecutor(READ_THREADS) as pool:
            return [*filter(None, pool.map(read, [self._files[at] for at in files]))]

    def add(self, results: KnownResults) -> None:
        """Store results, maybe later together with others."""
        with self._lock:
            self._since = self._since if self._waiting else time.monotonic()
            self._bytes = results.nbytes + (self._bytes if self._waiting else 0)
            self._waiting.append(results)
            size = self._bytes
        if size >= FILE_BYTES or time.monotonic() - self._since >= FILE_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the results that wait. Those of different types are in different files."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for schema in {each.table.schema: None for each in waiting}:
            content = _content_of([each for each in waiting if each.table.schema == schema])
            try:
                if not self._is_broken:
                    (self._place / self._name_of(*content)).write(b"".join(content))
            except OSError:
                self._fail()

    def _name_of(self, keys: bytes, results: bytes) -> str:
        found = hashlib.sha256(self._digest.encode() + keys + results).hexdigest()
        return f"{found}-{len(keys) // HASH_BYTES}.results"

    def _fail(self) -> None:
        self._is_broken = True
        self.errors += 1

    def _refresh(self) -> None:
        """Add the files that are new since the last time to the index."""
        self._due = time.monotonic() + REFRESH_SECONDS
        known, number = set(self._files), len(self._files)
        try:
            names = (base_name(info.path) for info in self._place.files())
            self._files += [name for name in names if _FILE.fullmatch(name) and name not in known]
            with ThreadPoolExecutor(READ_THREADS) as pool:
                found = [*pool.map(self._read_beginnings, self._files[number:])]
        except OSError:
            self._fail()
            return
        numbers = np.arange(number, len(self._files), dtype=np.int32)
        beginnings = np.concatenate([self._beginnings, *found])
        numbers = np.concatenate([self._numbers, np.repeat(numbers, [*map(len, found)])])
        order = np.argsort(beginnings, kind="stable")
        self._beginnings, self._numbers = beginnings[order], numbers[order]

    def _read_beginnings(self, name: str) -> np.ndarray:
        """Return the beginnings of the keys of a file, which may be damaged or deleted."""
        try:
            keys = (self._place / name).read(_rows_in(name) * HASH_BYTES)
        except FileNotFoundError:
            keys = b""
        whole = keys[: len(keys) // HASH_BYTES * HASH_BYTES]
        return np.frombuffer(whole, f"S{BEGINNING}")[:: HASH_BYTES // BEGINNING]

    def _read(self, name: str, wanted: Collection[bytes] | None) -> KnownResults | None:
        """Return the results in a file, or those that are wanted; None if it is damaged, or does
        not exist any more."""
        try:
            content, at = (self._place / name).read_if_exists(), _rows_in(name) * HASH_BYTES
            if content is None:
                return None
            keys, results = content[:at], content[at:]
            if self._name_of(keys, results) != name:
                raise ValueError("it is damaged")
            found = _results_of(keys, results, self._names)
            return found if wanted is None else found.only(wanted)
        except OSError:
            self._fail()
        except (ValueError, LookupError):
            self.errors += 1
        return None


_OPEN: WeakSet[ResultCache] = WeakSet()


def flush_caches() -> None:
    """Write the results that wait in this process, which may end soon."""
    for cache in list(_OPEN):
        cache.flush()


def _rows_in(name: str) -> int:
    return int(name.partition("-")[2].partition(".")[0])


def _content_of(groups: Sequence[KnownResults]) -> tuple[bytes, bytes]:
    """Return the keys and the results of groups with the same columns."""
    table = concat([with_warnings(each.table, each.warnings) for each in groups])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    return b"".join(key for each in groups for key in each.keys), bytes(sink.getvalue())


def _results_of(keys: bytes, results: bytes, names: Sequence[str]) -> KnownResults:
    """Return the content of a file. The columns of the other job may have had other names."""
    table = read_stream(results)
    if register_tensors(table.schema):
        table = read_stream(results)
    table, warnings = split_warnings(table)
    by_row: dict[int, list[RowWarning]] = {}
    for warning in warnings:
        by_row.setdefault(warning.row, []).append(warning)
    if table.num_rows * HASH_BYTES != len(keys):
        raise ValueError("it has other rows than keys")
    parts = [keys[at : at + HASH_BYTES] for at in range(0, len(keys), HASH_BYTES)]
    return KnownResults(parts, table.rename_columns(names), by_row, stored=True)
