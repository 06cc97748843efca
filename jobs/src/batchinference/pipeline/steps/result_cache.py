"""Stores results of a model step: recent results in memory, and results for other jobs in files.

The key of a row is the hash of the inputs of the model. A cache has one directory for each model,
named by the hash of the model's files and settings (`model_digest`). A cache file is never changed.
It holds the keys of some rows, and then their results as an Arrow IPC stream. Its name contains a
hash of `model_digest` and the content, which detects damaged files and files of other models. Jobs
that write the same results at the same time write two valid files."""

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
"""Approximate maximum bytes of the results that a process keeps in memory for a step, and the bytes
that each row needs in addition to the table of its results."""
FILE_BYTES, FILE_SECONDS = 4 << 20, 30.0
"""`add` writes results that have FILE_BYTES bytes or are FILE_SECONDS old."""
REFRESH_SECONDS = 60.0
"""Minimum seconds between two searches for new files."""
READ_THREADS, PREFIX_BYTES = 16, 8
_FILE = re.compile(r"([0-9a-f]{64})-([1-9][0-9]{0,8})\.results")
"""The name of a file: its hash, and its number of rows."""


@dataclass(frozen=True)
class KnownResults:
    """Results of several rows: their keys, the columns that the step adds, and the warnings by row
    index. `stored` says whether the results were read from a cache."""

    keys: Sequence[bytes]
    table: pa.Table
    warnings: Mapping[int, Sequence[RowWarning]]
    stored: bool = False

    @property
    def nbytes(self) -> int:
        """The approximate memory in bytes."""
        return int(self.table.nbytes) + ROW_BYTES * len(self.keys)

    def by_key(self) -> dict[bytes, ResultRow]:
        """Return the result row of each key. Of rows with the same key, the last one counts."""
        return {key: (self, row) for row, key in enumerate(self.keys)}

    def of_keys(self, keys: Collection[bytes]) -> KnownResults:
        """Return a copy with only the results of these keys, to need less memory."""
        rows = [row for row, key in enumerate(self.keys) if key in keys]
        warnings = {at: self.warnings[row] for at, row in enumerate(rows) if row in self.warnings}
        table = self.table.take(pa.array(rows, pa.int64()))
        return replace(self, keys=[self.keys[row] for row in rows], table=table, warnings=warnings)


ResultRow = tuple[KnownResults, int]
"""The results of several rows, and the index of one row in them."""


class RecentResults:
    """The results of recent rows by key, up to about `max_bytes`. This class is thread-safe."""

    def __init__(self, max_bytes: int = MEMORY_BYTES) -> None:
        self._max_bytes, self._bytes, self._lock = max_bytes, 0, Lock()
        self._by_key: dict[bytes, ResultRow] = {}

    def add(self, results: KnownResults) -> None:
        """Add results. If that exceeds the maximum size, forget all earlier results."""
        with self._lock:
            self._bytes += results.nbytes
            if self._bytes > self._max_bytes:
                self._by_key, self._bytes = {}, results.nbytes
            self._by_key |= results.by_key()

    def find(self, keys: Iterable[bytes]) -> dict[bytes, ResultRow]:
        """Return the result row of each of these keys that is known."""
        with self._lock:
            return {key: self._by_key[key] for key in keys if key in self._by_key}


class ResultCache:
    """The results of one model in the files of a directory. This class is thread-safe.

    `find` looks at most every REFRESH_SECONDS for new files of all jobs and processes. An error of
    the storage ends the use of the cache, but not the job. `errors` also counts damaged files."""

    def __init__(self, cache: Location, digest: str, names: Sequence[str]) -> None:
        self._directory, self._digest, self._names = cache / digest, digest, list(names)
        self._lock, self._is_broken, self.errors = Lock(), False, 0
        self._unwritten: list[KnownResults] = []
        self._unwritten_since, self._unwritten_bytes = 0.0, 0
        self._files = [""]
        self._prefixes = np.full(1, b"\xff" * PREFIX_BYTES)
        """The sorted prefixes of all keys, and a last item that is greater than any prefix."""
        self._file_of_prefix = np.zeros(1, np.int32)
        """For each item of `_prefixes`, the index in `_files` of the file that contains the key."""
        self._next_refresh = 0.0
        _OPEN.add(self)

    def find(self, keys: Iterable[bytes], max_bytes: int = MEMORY_BYTES) -> list[KnownResults]:
        """Return the results in the files that may have these keys, at most one file for each key.
        Return only the results of `keys` if the files may exceed `max_bytes` in total."""
        keys = set(keys)
        wanted = np.array([key[:PREFIX_BYTES] for key in keys], f"S{PREFIX_BYTES}")
        with self._lock:
            if time.monotonic() >= self._next_refresh and not self._is_broken:
                self._refresh()
            prefixes, file_of_prefix = self._prefixes, self._file_of_prefix
        if self._is_broken or not len(wanted):
            return []
        indexes = np.searchsorted(prefixes, wanted)
        files = np.unique(file_of_prefix[indexes[prefixes[indexes] == wanted]]).tolist()
        all_fit = len(files) * FILE_BYTES <= max_bytes
        read = partial(self._read, wanted=None if all_fit else keys)
        with ThreadPoolExecutor(READ_THREADS) as pool:
            return [*filter(None, pool.map(read, [self._files[at] for at in files]))]

    def add(self, results: KnownResults) -> None:
        """Add results. Write all unwritten results if they fill a file or are old."""
        with self._lock:
            if not self._unwritten:
                self._unwritten_since, self._unwritten_bytes = time.monotonic(), 0
            self._unwritten.append(results)
            self._unwritten_bytes += results.nbytes
            is_large = self._unwritten_bytes >= FILE_BYTES
            is_old = time.monotonic() - self._unwritten_since >= FILE_SECONDS
        if is_large or is_old:
            self.flush()

    def flush(self) -> None:
        """Write all unwritten results, one file for each schema."""
        with self._lock:
            unwritten, self._unwritten = self._unwritten, []
        for schema in {each.table.schema: None for each in unwritten}:
            content = _content_of([each for each in unwritten if each.table.schema == schema])
            try:
                if not self._is_broken:
                    (self._directory / self._name_of(*content)).write(b"".join(content))
            except OSError:
                self._disable()

    def _name_of(self, keys: bytes, results: bytes) -> str:
        digest = hashlib.sha256(self._digest.encode() + keys + results).hexdigest()
        return f"{digest}-{len(keys) // HASH_BYTES}.results"

    def _disable(self) -> None:
        self._is_broken = True
        self.errors += 1

    def _refresh(self) -> None:
        """Add to the index the files that are new since the last call."""
        self._next_refresh = time.monotonic() + REFRESH_SECONDS
        known, first_new = set(self._files), len(self._files)
        try:
            names = (base_name(info.path) for info in self._directory.files())
            self._files += [name for name in names if _FILE.fullmatch(name) and name not in known]
            with ThreadPoolExecutor(READ_THREADS) as pool:
                added = [*pool.map(self._read_prefixes, self._files[first_new:])]
        except OSError:
            self._disable()
            return
        numbers = np.arange(first_new, len(self._files), dtype=np.int32)
        prefixes = np.concatenate([self._prefixes, *added])
        numbers = np.concatenate([self._file_of_prefix, np.repeat(numbers, [*map(len, added)])])
        order = np.argsort(prefixes, kind="stable")
        self._prefixes, self._file_of_prefix = prefixes[order], numbers[order]

    def _read_prefixes(self, name: str) -> np.ndarray:
        """Return the prefixes of the keys in a file, even if the file is truncated or deleted."""
        try:
            keys = (self._directory / name).read(_rows_in(name) * HASH_BYTES)
        except FileNotFoundError:
            keys = b""
        complete = keys[: len(keys) // HASH_BYTES * HASH_BYTES]
        return np.frombuffer(complete, f"S{PREFIX_BYTES}")[:: HASH_BYTES // PREFIX_BYTES]

    def _read(self, name: str, wanted: Collection[bytes] | None) -> KnownResults | None:
        """Return the results in a file; only the results of the keys in `wanted`, if it is not
        None. Return None if the file is damaged or deleted, or if the storage fails."""
        try:
            content, at = (self._directory / name).read_if_exists(), _rows_in(name) * HASH_BYTES
            if content is None:
                return None
            keys, results = content[:at], content[at:]
            if self._name_of(keys, results) != name:
                raise ValueError("it is damaged")
            known = _results_of(keys, results, self._names)
            return known if wanted is None else known.of_keys(wanted)
        except OSError:
            self._disable()
        except (ValueError, LookupError):
            self.errors += 1
        return None


_OPEN: WeakSet[ResultCache] = WeakSet()


def flush_caches() -> None:
    """Write all unwritten results of this process, because the process may end soon."""
    for cache in list(_OPEN):
        cache.flush()


def _rows_in(name: str) -> int:
    return int(name.partition("-")[2].partition(".")[0])


def _content_of(groups: Sequence[KnownResults]) -> tuple[bytes, bytes]:
    """Return the two parts of a file, keys and results. All groups must have the same columns."""
    table = concat([with_warnings(each.table, each.warnings) for each in groups])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    return b"".join(key for each in groups for key in each.keys), bytes(sink.getvalue())


def _results_of(keys: bytes, results: bytes, names: Sequence[str]) -> KnownResults:
    """Return the results in the two parts of a file. The columns get the names of this job, because
    other jobs with the same model may name their columns differently."""
    table = read_stream(results)
    if register_tensors(table.schema):
        table = read_stream(results)
    table, warnings = split_warnings(table)
    by_row: dict[int, list[RowWarning]] = {}
    for warning in warnings:
        by_row.setdefault(warning.row, []).append(warning)
    if table.num_rows * HASH_BYTES != len(keys):
        raise ValueError("it has another number of rows than of keys")
    parts = [keys[at : at + HASH_BYTES] for at in range(0, len(keys), HASH_BYTES)]
    return KnownResults(parts, table.rename_columns(names), by_row, stored=True)
