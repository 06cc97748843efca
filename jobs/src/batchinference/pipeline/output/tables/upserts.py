"""Puts rows into a store by their key. The store has no transactions.

The rows of a job are put in batches at its commit. A repeated commit puts the same rows again, so
that a commit that was killed is completed by the next run. A store numbers the commits: each begins
with a higher version than those before, and a row is not replaced by one of a lower version. So a
delayed driver changes no row of a later commit. The version is requested before the last check of
the lease: whoever takes over the output after this check gets a higher one.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.table_commit import (
    Fence,
    TableFiles,
    table_errors_as_bad_output,
)
from batchinference.pipeline.errors import (
    BadOutput,
    StorageUnavailable,
    UnwritableValue,
)
from batchinference.pipeline.non_finite import non_finite_values
from batchinference.pipeline.output.tables import Row
from batchinference.pipeline.output.tables.keys import MergingTable
from batchinference.pipeline.output.tables.vectors import Vectors, new_vectors
from batchinference.pipeline.output.writers.json import with_exact_times
from batchinference.pipeline.output.writers.parquet import storable
from batchinference.pipeline.storage.arrow_files import open_parquet
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.retry import RetryPolicy, TryAgain
from batchinference.spec.write.stores import WriteStore

MARKS = "batchinference_commits"
"""The collection or index with the marks of commits, and the version of the last commit."""
BATCH_ROWS, BATCH_BYTES, THREADS = 256, 4 << 20, 4
"""Maximum rows and bytes of a request, before they are encoded, and concurrent requests."""
LOOKED_UP = 1000
"""Maximum keys of a request."""
WRITES = RetryPolicy(8, 0.5, lambda error: isinstance(error, TryAgain))
"""It retries for about a minute."""
_KEYS = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)


@dataclass(frozen=True)
class Refusal:
    """Why a store has not accepted a row, and whether it may accept it later."""

    cause: str
    transient: bool = False


@dataclass
class Refused:
    """The number of rows that a store has refused, and the cause for the first of them."""

    rows: int = 0
    cause: str = ""

    def add(self, refusals: Sequence[Refusal]) -> None:
        self.cause = self.cause or (refusals[0].cause if refusals else "")
        self.rows += len(refusals)


class UpsertTable(MergingTable):
    """A collection of rows, each of which is stored under an id that is made from its key."""

    def __init__(self, write: WriteStore, name: str) -> None:
        self._write, self.name = write, name
        self.key = tuple(write.key)
        self.vectors: Vectors | None = None

    @abstractmethod
    def client(self) -> AbstractContextManager[Any]:
        """Open a client. The other methods raise TryAgain for errors that may pass."""

    @abstractmethod
    def layout(self, client: Any) -> Vectors | None:
        """Return the vectors of the existing collection; of length 0 if it has none. None if it
        does not exist. Raises BadOutput if the job cannot write to it."""

    @abstractmethod
    def create(self, client: Any) -> None:
        """Create the collection."""

    @abstractmethod
    def id_of(self, key: tuple[Any, ...]) -> Any:
        """Return the id of a row. Raises UnwritableValue if the store has no id for the key."""

    @abstractmethod
    def put_rows(self, client: Any, rows: dict[Any, Row], version: int) -> dict[Any, Refusal]:
        """Put rows, by their ids, that are not stored with a higher version. Return why rows were
        refused, by id."""

    @abstractmethod
    def mark(self, client: Any, name: str) -> Row:
        """Return the fields of a mark; none if it does not exist."""

    @abstractmethod
    def put_mark(self, client: Any, name: str, fields: Row) -> None:
        """Write a mark. Create the collection of marks if it does not exist."""

    @abstractmethod
    def next_version(self, client: Any) -> int:
        """Return a number that is higher than those of all earlier commits to the collection."""

    @abstractmethod
    def known_ids(self, client: Any, ids: Sequence[Any]) -> set[Any]:
        """Return those of these ids that the collection has."""

    @abstractmethod
    def first(self, client: Any, count: int) -> list[Row]:
        """Return up to `count` rows of the collection."""

    def finish(self, client: Any) -> None:
        """Make all rows that were put visible to searches."""

    @contextmanager
    def _session(self) -> Iterator[Any]:
        with table_errors_as_bad_output():
            try:
                with self.client() as client:
                    yield client
            except TryAgain as error:
                raise StorageUnavailable(
                    f"write: the server of '{self.name}' does not answer as it should ({error})"
                ) from None

    def load(self) -> None:
        with self._session() as client:
            existing = self.layout(client)
        self.vectors = new_vectors(self._write, self.name, existing)

    def convert(self, table: pa.Table) -> pa.Table:
        for name in set(self.key) & set(table.column_names):
            kind = table.schema.field(name).type
            if not any(check(kind) for check in _KEYS):
                raise BadOutput(
                    f"write.key: column '{name}' is {kind}, and a key is an integer or a text. "
                    "Convert it in a step"
                )
        table = storable(tensors_to_lists(table))
        return self.vectors.cast(table) if self.vectors else table

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        table = tensors_to_lists(table)
        errors = self.vectors.unwritable(table) if self.vectors else {}
        for row, key in enumerate(self._keys(table)):
            try:
                self.id_of(key)
            except UnwritableValue as error:
                errors.setdefault(row, error)
        return errors

    def nulled_rows(self, table: pa.Table) -> dict[int, int]:
        others = [name for name in table.column_names if name != self._write.vector_column]
        return non_finite_values(table.select(others))

    def _keys(self, table: pa.Table) -> Iterator[tuple[Any, ...]]:
        return zip(*(table.column(name).to_pylist() for name in self.key), strict=True)

    def put(self, file: Location, content: bytes) -> Location:
        return file

    def existing(self) -> Vectors | None:
        with self._session() as client:
            return self.layout(client)

    def commits(self, mark: str) -> int:
        return self.commits_in(None, mark)

    def commits_in(self, existing: Any, mark: str) -> int:
        with self._session() as client:
            return int(bool(self.mark(client, mark)))

    def head(self, existing: Any, count: int) -> list[Row]:
        with self._session() as client:
            return self.first(client, count)

    def keys_of(self, existing: Any, wanted: pa.Table) -> Iterator[pa.Table]:
        with self._session() as client:
            for start in range(0, wanted.num_rows, LOOKED_UP):
                keys = wanted.slice(start, LOOKED_UP)
                ids = [self.id_of(key) for key in self._keys(keys)]
                known = self.known_ids(client, ids)
                yield keys.filter(pa.array([id_ in known for id_ in ids]))

    def register(self, rows: TableFiles, fence: Fence) -> None:
        with self._session() as client:
            if fence.is_passed(lambda mark: int(bool(self.mark(client, mark)))):
                return
            version = self.next_version(client)
            fence.check()  # after the version
            self._check_same_key(client, fence)
            if self.layout(client) is None:
                self.create(client)
            refused = self._put_all(client, rows.files, version, fence)
            self.finish(client)
            if refused.rows:
                raise BadOutput(
                    f"write: '{self.name}' has refused {refused.rows} rows ({refused.cause}), and "
                    "has all others. Correct its fields, and run the job again: it computes no row "
                    "again"
                )
            fence.check()
            # in this order: a commit with the mark of the series only would never be completed
            for mark in (fence.commit_id, fence.series):
                self.put_mark(client, mark, {"version": version})

    def _check_same_key(self, client: Any, fence: Fence) -> None:
        """Raise BadOutput if an attempt has put rows under ids that are made of other columns."""
        begun = f"{fence.series}-begun"
        key = self.mark(client, begun).get("key", list(self.key))
        if key != list(self.key):
            raise BadOutput(
                f"write.key: rows of this job were put into '{self.name}' with the key "
                f"{', '.join(key)}. Restore this key, or choose another path"
            )
        self.put_mark(client, begun, {"key": key})

    def _put_all(self, client: Any, files: list[Location], version: int, fence: Fence) -> Refused:
        refused, batches = Refused(), _batches(files)
        with ThreadPoolExecutor(THREADS) as pool:
            while group := list(islice(batches, THREADS)):
                fence.check()
                for found in pool.map(lambda batch: self._put(client, batch, version), group):
                    refused.add(found)
        return refused

    def _put(self, client: Any, batch: pa.Table, version: int) -> list[Refusal]:
        """Put a batch of rows, and put those again that the store may accept later. Return why
        others were refused.

        Raises StorageUnavailable if the store does not accept rows for too long."""
        keys = self._keys(batch)
        left = dict(zip(map(self.id_of, keys), with_exact_times(batch).to_pylist(), strict=True))
        refused: list[Refusal] = []

        def put_the_rest() -> None:
            nonlocal left
            found = self.put_rows(client, left, version)
            refused.extend(one for one in found.values() if not one.transient)
            left = {id_: left[id_] for id_, one in found.items() if one.transient}
            if left:
                raise TryAgain(found[next(iter(left))].cause)

        try:
            WRITES.call(put_the_rest)
        except TryAgain as error:
            raise StorageUnavailable(
                f"write: '{self.name}' has not accepted {len(left)} rows of a batch ({error}). Run "
                "the job again: it computes no row again"
            ) from None
        return refused

    def address(self) -> str:
        """Return the URL of the server. Raises BadOutput if its variable is not set."""
        return self._write.url or variable("urlEnv", self._write.url_env)


def variable(field: str, name: str | None) -> str:
    """Return the value of the environment variable that a field names. Raises BadOutput if it is
    not set."""
    if value := os.environ.get(name or ""):
        return value
    raise BadOutput(f"write.{field}: the variable {name} is not set")


def higher_version(last: int) -> int:
    """Return a version that is higher than the last one, and than the versions of documents that
    others have changed, which count from 1: the time in milliseconds."""
    return max(int(time.time() * 1000), last + 1)


def _batches(files: list[Location]) -> Iterator[pa.Table]:
    """Yield the rows of staged files in tables of limited size."""
    for file in files:
        with file.open_input_file() as source:
            for batch in open_parquet(source).iter_batches(BATCH_ROWS):
                yield from _pieces(pa.Table.from_batches([batch]))


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    if table.nbytes <= BATCH_BYTES or table.num_rows == 1:
        yield table
        return
    half = table.num_rows // 2
    yield from _pieces(table.slice(0, half))
    yield from _pieces(table.slice(half))
