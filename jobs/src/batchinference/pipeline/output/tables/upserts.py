"""Inserts or replaces rows by key in a store without transactions.

At the commit, the rows of a job are put into the store in batches. If the driver is killed during
the commit, the next run repeats the commit and puts the same rows again.

Each commit has a higher version than earlier commits, and its rows have this version. A row never
replaces a row with a higher version, so a delayed driver changes no row of a later commit. A driver
chooses its version before it checks its lease. If another driver takes over the output after this
check, the other driver chooses a higher version."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from typing import Any, ClassVar
from urllib.parse import urlsplit

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
    mask_secrets,
)
from batchinference.pipeline.non_finite_counts import non_finite_values
from batchinference.pipeline.output.key_types import of_store
from batchinference.pipeline.output.tables import Row
from batchinference.pipeline.output.tables.keys import MergingTable
from batchinference.pipeline.output.tables.vectors import Vectors, vectors_of
from batchinference.pipeline.output.writers import unwritable_items
from batchinference.pipeline.output.writers.json import with_exact_times
from batchinference.pipeline.output.writers.parquet import storable
from batchinference.pipeline.storage.arrow_files import batches_in
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.retry import HTTP, RetryPolicy, TransientError
from batchinference.spec.write.tables import WriteStore
from batchinference.text import counted

MARKS = "batchinference_commits"
"""The collection or index with the marks of commits and the version of the last commit."""
BATCH_ROWS, BATCH_BYTES, THREADS = 256, 4 << 20, 4
"""Maximum rows and (unencoded) bytes of a request, and maximum number of concurrent requests."""
LOOKED_UP = 1000
"""Maximum number of keys in a request that looks up rows."""
FIELDS = ["version", "key"]
"""The fields of documents in MARKS."""
WRITES = RetryPolicy(8, 0.5, lambda error: isinstance(error, TransientError))
"""Retries for about a minute."""
Refusal = tuple[str, bool]
"""The reason why a store has refused a row, and whether a retry may succeed."""


class UpsertTable(MergingTable):
    """A collection of rows, in which the id of a row is made from its key."""

    product: ClassVar[str]
    """The name of the store in messages."""
    vectors: Vectors | None = None

    def __init__(self, write: WriteStore, name: str) -> None:
        self._write, self.name, self.key = write, name, tuple(write.key)

    @abstractmethod
    def client(self) -> AbstractContextManager[Any]:
        """Return a context manager that opens and closes a client."""

    @abstractmethod
    def as_transient(self, error: Exception) -> TransientError | None:
        """Return TransientError for a client error after which a retry may succeed, else None."""

    @abstractmethod
    def find_vectors(self, client: Any) -> Vectors | None:
        """Return the vectors of the collection; None if the collection does not exist. The vectors
        have length 0 if the job writes none. Raises BadOutput if the job cannot write to it."""

    @abstractmethod
    def create(self, client: Any, name: str, vectors: Vectors | None) -> None:
        """Create a collection unless it exists."""

    @abstractmethod
    def id_of(self, key: tuple[Any, ...]) -> Any:
        """Return the id of a row. Raises UnwritableValue if the key cannot be an id."""

    @abstractmethod
    def put_rows(
        self, client: Any, name: str, rows: dict[Any, Row], version: int
    ) -> dict[Any, Refusal]:
        """Put the rows (by id) into a collection. Rows with a higher version are not replaced.
        Return a Refusal for each refused row, by id."""

    @abstractmethod
    def rows_of(self, client: Any, name: str, ids: Sequence[Any]) -> dict[Any, Row]:
        """Return the rows of a collection with these ids, by id, with only the columns FIELDS.
        Return no rows if the collection does not exist."""

    @abstractmethod
    def sample(self, client: Any, count: int) -> list[Row]:
        """Return up to `count` rows of the collection."""

    def make_searchable(self, client: Any) -> None:
        """Let searches find the rows that were put so far. By default, they are found already."""

    def request(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the answer to a request. Raises TransientError if a retry may succeed."""
        try:
            return call(*arguments, **options)
        except Exception as error:
            if (again := self.as_transient(error)) is None:
                raise
            raise again from None

    def call_with_retries(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the answer to a request, and retry it if necessary."""
        return HTTP.call(lambda: self.request(call, *arguments, **options))

    @contextmanager
    def _session(self) -> Iterator[Any]:
        with table_errors_as_bad_output():
            try:
                with self.client() as client:
                    yield client
            except TransientError as error:
                raise StorageUnavailable(
                    f"write: the server of '{self.name}' does not answer as it should "
                    f"({mask_secrets(str(error))})"
                ) from None

    def environment_variable(self, field: str, name: str | None) -> str:
        """Return the value of the environment variable `name`. Raises BadOutput if it is not set.
        `field` is the field of `write` with this name, for the message."""
        if value := os.environ.get(name or ""):
            return value
        raise BadOutput(f"write.{field}: the variable {name} is not set")

    def server_url(self) -> str:
        """Return the URL of the store. Raises BadOutput if the URL is not valid. The error of the
        client might show a part of the password."""
        url = self._write.url or self.environment_variable("urlEnv", self._write.url_env)
        if not is_valid_url(url):
            field = "url" if self._write.url else "urlEnv"
            raise BadOutput(
                f"write.{field}: not a valid URL. Write http://HOST:PORT or https://HOST:PORT, and "
                "the characters / ? # @ in a password as %2F %3F %23 %40"
            )
        return url

    def load(self) -> None:
        self.vectors = vectors_of(self._write, self.name, self.existing())

    def convert(self, table: pa.Table) -> pa.Table:
        keys = (field for field in table.schema if field.name in self.key)
        for problem in of_store(self._write.format).problems(keys):
            raise BadOutput(f"write.key: {problem}")
        table = storable(tensors_to_lists(table), self.product)
        return self.vectors.cast(table) if self.vectors else table

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        of_vectors = self.vectors.unwritable(table) if self.vectors else {}
        return unwritable_items(self.id_of, self._keys(table)) | of_vectors

    def nulled_rows(self, table: pa.Table) -> dict[int, int]:
        others = [name for name in table.column_names if name != self._write.vector_column]
        return non_finite_values(tensors_to_lists(table.select(others)))

    def _keys(self, table: pa.Table) -> Iterator[tuple[Any, ...]]:
        return zip(*(table.column(name).to_pylist() for name in self.key), strict=True)

    def existing(self) -> Vectors | None:
        with self._session() as client:
            return self.find_vectors(client)

    def commit_count(self, mark: str) -> int:
        with self._session() as client:
            return self._count_mark(client, mark)

    def head(self, existing: Any, count: int) -> list[Row]:
        with self._session() as client:
            return self.sample(client, count)

    def find_keys(self, existing: Any, wanted: pa.Table) -> Iterator[pa.Table]:
        with self._session() as client:
            for start in range(0, wanted.num_rows, LOOKED_UP):
                keys = wanted.slice(start, LOOKED_UP)
                ids = [self.id_of(key) for key in self._keys(keys)]
                known = self.rows_of(client, self.name, ids)
                yield keys.filter(pa.array([id_ in known for id_ in ids]))

    def register(self, rows: TableFiles, fence: Fence) -> None:
        with self._session() as client:
            if fence.has_committed(partial(self._count_mark, client)):
                return
            self.create(client, MARKS, None)
            version = self._next_version(client)
            fence.check()  # after choosing the version (see the beginning of this module)
            self._check_same_key(client, fence, version)
            if self.find_vectors(client) is None:
                self.create(client, self.name, self.vectors)
            # another job may have created it with vectors of another length or distance
            vectors_of(self._write, self.name, self.find_vectors(client))
            self._put_all(client, rows.files, version, fence)
            self.make_searchable(client)
            fence.check()
            # the mark of the series is last: if it were alone, the next run could not commit
            for mark in (fence.commit_id, fence.series_id):
                self._put_mark(client, mark, {"version": version}, version)

    def _count_mark(self, client: Any, mark: str) -> int:
        return int(bool(self._mark(client, mark)))

    def _mark(self, client: Any, name: str) -> Row:
        """Return the fields of a document in MARKS; empty if it does not exist."""
        return next(iter(self.rows_of(client, MARKS, [self.id_of((name,))]).values()), {})

    def _put_mark(self, client: Any, name: str, fields: Row, version: int) -> None:
        def put() -> None:
            row = {self.id_of((name,)): fields}
            for cause, _ in self.put_rows(client, MARKS, row, version).values():
                raise TransientError(cause)

        HTTP.call(put)

    def _next_version(self, client: Any) -> int:
        """Store and return a version that is higher than the versions of earlier commits. A store
        adds 1 to the version of a row if another writer changes the row. The new version is higher
        than such versions too, because it is at least the time in milliseconds."""
        version = max(int(time.time() * 1000), self.last_version(client) + 1)
        self._put_mark(client, f"version of {self.name}", {"version": version}, version)
        return version

    def last_version(self, client: Any) -> int:
        """Return the version of the last commit of any job; 0 if there is none."""
        return int(self._mark(client, f"version of {self.name}").get("version", 0))

    def _check_same_key(self, client: Any, fence: Fence, version: int) -> None:
        """Raise BadOutput if an earlier pass has put rows with other key columns."""
        begun = f"{fence.series_id}-begun"
        key = self._mark(client, begun).get("key", list(self.key))
        if key != list(self.key):
            raise BadOutput(
                f"write.key: rows of this job were put into '{self.name}' with the key "
                f"{', '.join(key)}. Restore this key, or choose another path"
            )
        self._put_mark(client, begun, {"key": key}, version)

    def _put_all(self, client: Any, files: list[Location], version: int, fence: Fence) -> None:
        """Put the rows of all files into the store. Raises BadOutput if some were refused."""
        refused, cause, batches = 0, "", _batches(files)
        with ThreadPoolExecutor(THREADS) as pool:
            while group := list(islice(batches, THREADS)):
                fence.check()
                for causes in pool.map(
                    lambda batch: self._put_batch(client, batch, version), group
                ):
                    refused, cause = refused + len(causes), cause or next(iter(causes), "")
        if refused:
            raise BadOutput(
                f"write: '{self.name}' has refused {counted(refused, 'row')} ({cause}), and stored "
                "all others. Correct its settings, and run the job again. No row is computed again"
            )

    def _put_batch(self, client: Any, batch: pa.Table, version: int) -> list[str]:
        """Put a batch of rows, and retry rows that the store may accept later. Return a reason for
        each row that is refused for good. Raises TransientError if the last retry fails."""
        rows, causes = with_exact_times(batch).to_pylist(), list[str]()
        remaining = dict(zip(map(self.id_of, self._keys(batch)), rows, strict=True))

        def put_remaining() -> None:
            nonlocal remaining
            failed = self.put_rows(client, self.name, remaining, version)
            causes.extend(cause for cause, transient in failed.values() if not transient)
            remaining = {id_: remaining[id_] for id_, (_, transient) in failed.items() if transient}
            for first in remaining:
                raise TransientError(f"{len(remaining)} rows of a batch: {failed[first][0]}")

        WRITES.call(put_remaining)
        return causes


def _batches(files: list[Location]) -> Iterator[pa.Table]:
    for batch in (batch for file in files for batch in batches_in(file, BATCH_ROWS)):
        yield from _pieces(pa.Table.from_batches([batch]))


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    if table.nbytes <= BATCH_BYTES or table.num_rows == 1:
        yield table
        return
    half = table.num_rows // 2
    yield from _pieces(table.slice(0, half))
    yield from _pieces(table.slice(half))


def is_valid_url(url: str) -> bool:
    """Return whether a text is a URL of a server. In `http://me:a/b@host`, the `/` of the password
    ends the host part. So an `@` after the host part means that the URL is not valid."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    rest = f"{parts.path}{parts.query}{parts.fragment}"
    return parts.scheme in ("http", "https") and bool(host) and "@" not in rest
