"""Reads the rows of an SQL query through SQLAlchemy connections."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.pool import NullPool
from sqlalchemy.util import asbool

from batchinference.credentials import add_secrets
from batchinference.pipeline.arrow import NO_VALUES, unchanged
from batchinference.pipeline.column_names import check_names
from batchinference.pipeline.errors import BadInput, JobFailure, describe, mask_secrets
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.sources import TableInput
from batchinference.spec.databases import sqlite_file
from batchinference.spec.read import ReadSql, SqlOptions


@dataclass(frozen=True)
class Database:
    """Creates connections to a database at `url`, or at the URL in the environment variable
    `url_env`. A pickled object has the name of the variable, but not its secret value."""

    url: str | None
    url_env: str | None

    @property
    def _field(self) -> str:
        """The field of the spec that gives the address, for messages."""
        return "read.url" if self.url else "read.urlEnv"

    def __call__(self) -> Any:
        """Return a new Python DB API connection. Raises BadInput if connecting fails."""
        try:
            return create_engine(_for_reading(self._address()), poolclass=NullPool).raw_connection()
        except JobFailure:
            raise
        except ModuleNotFoundError as error:
            raise BadInput(f"{self._field}: the database's driver is missing: {error}") from None
        except Exception as error:  # noqa: BLE001 - each driver has its own errors
            raise BadInput(f"{self._field}: no connection: {self.explain(error)}") from None

    def check_file(self) -> None:
        """Raise BadInput if the file of a SQLite database is missing: SQLite would create it."""
        address = self._address()
        file = sqlite_file(address)
        if file and not _has_uri(address) and not os.path.exists(file):
            raise BadInput(f"{self._field}: there is no file '{file}'. Correct the path")

    def _address(self) -> str:
        """Return the URL. Raises BadInput if the environment variable is not set."""
        if self.url is not None:
            return self.url
        if address := os.environ.get(self.url_env or ""):
            add_secrets([address])
            return address
        raise BadInput(f"read.urlEnv: the environment variable '{self.url_env}' is not set")

    def explain(self, error: Exception) -> str:
        """Return the message of an error without the password."""
        text = mask_secrets(describe(error))
        try:
            password = make_url(self._address()).password
        except Exception:  # noqa: BLE001 - the address is not a valid URL
            return text.replace(self._address(), "***")
        return text.replace(str(password), "***") if password else text

    def first_value(self, statement: str) -> Any:
        """Return the first value of the first row of the result of a statement."""
        with closing(self()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return cursor.fetchone()[0]

    def rows(self, query: str) -> list[pa.Table]:
        """Return all rows of a query as one table. Raises BadInput if no type fits a column."""
        with closing(self()) as connection:
            cursor = connection.cursor()
            cursor.execute(query)
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
        return [
            pa.table(
                [_column(name, [row[at] for row in rows]) for at, name in enumerate(names)], names
            )
        ]

    def columns(self, query: str) -> list[str]:
        """Return the names of the columns of a query, without computing its rows."""
        with closing(self()) as connection:
            cursor = connection.cursor()
            # SQLite computes rows only when they are fetched, so executing the query is cheap. In
            # a subquery, SQLite would rename columns with equal names.
            is_sqlite = make_url(self._address()).get_backend_name() == "sqlite"
            empty = f"SELECT * FROM {_as_subquery(query)} WHERE 1 = 0"  # noqa: S608 - user SQL
            cursor.execute(query if is_sqlite else empty)
            return [column[0] for column in cursor.description]


def _has_uri(address: str) -> bool:
    """Return whether the address tells SQLite to read the name of its file as a URI."""
    url = make_url(address)
    return url.get_backend_name() == "sqlite" and asbool(url.query.get("uri", False))


def _for_reading(address: str) -> str | URL:
    """Return the address. The URI of a SQLite file gets `mode=ro`, or SQLite may create a file."""
    if not _has_uri(address):
        return address
    url = make_url(address)
    if not (url.database or "").startswith("file:"):
        raise BadInput("read.url: with uri=true, the name of the file must begin with 'file:'")
    return url if url.query.get("mode") == "memory" else url.update_query_dict({"mode": "ro"})


def open_source(read: ReadSql) -> TableInput:
    """Return the query as an input with a row count. Raises BadInput if the query fails."""
    database, query = Database(read.url, read.url_env), read.query.strip().rstrip(";")
    database.check_file()
    try:
        columns = database.columns(query)
        count = int(database.first_value(f"SELECT COUNT(*) FROM {_as_subquery(query)}"))  # noqa: S608
    except JobFailure:
        raise
    except Exception as error:  # noqa: BLE001 - each driver has its own errors
        raise BadInput(f"read.query: {database.explain(error)}{_hint(error)}") from None
    check_names(columns, "read.query")
    sharded = read.options.shard_keys and count
    queries = _shards(database, query, read.options) if sharded else [query]
    return TableInput(
        "sql",
        [partial(database.rows, each) for each in queries],
        columns,
        RowCount(count, estimated=False),
        explain=database.explain,
    )


def _as_subquery(query: str) -> str:
    """Return the query as a subquery for FROM. Oracle rejects `AS` before the name `T`. The closing
    parenthesis has its own line, because the query may end with a comment."""
    return f"({query}\n) T"


def _hint(error: Exception) -> str:
    """Return a hint if SQL Server has rejected ORDER BY in a subquery; else empty."""
    if "ORDER BY clause is invalid" not in str(error):
        return ""
    return (
        ". The query is wrapped in another query, which counts its rows. Add OFFSET 0 ROWS after "
        "its ORDER BY, or remove the ORDER BY"
    )


def _shards(database: Database, query: str, options: SqlOptions) -> list[str]:
    """Return the query of each shard. Raises BadInput if the database cannot compute the shards, or
    if rows are in no shard."""
    keys, shards = ",".join(options.shard_keys or ()), options.override_num_blocks or 1
    key = f"CONCAT({keys})" if "," in keys else keys
    shard = f"MOD(ABS({options.shard_hash_fn}({key})), {shards})"
    rows = f"FROM {_as_subquery(query)} WHERE {shard}"
    try:
        unassigned = database.first_value(f"SELECT COUNT(*) {rows} IS NULL")
    except Exception:  # noqa: BLE001 - each driver has its own errors
        raise BadInput(
            f"read.options.shardHashFn: the database cannot compute {shard}. Name another "
            "function, or remove shardKeys and overrideNumBlocks"
        ) from None
    if unassigned:
        raise BadInput(
            "read.options.shardKeys: rows without a value there would be in no shard "
            f"({unassigned}). Name other columns, or leave those rows out of the query"
        )
    return [f"SELECT * {rows} = {number}" for number in range(shards)]


def _column(name: str, values: list[Any]) -> pa.ChunkedArray:
    try:
        return unchanged(pa.chunked_array([pa.array(values)]), values)
    except NO_VALUES as error:
        raise BadInput(
            f"read.query: no type holds the values of column '{name}': {error}. Cast it to text in "
            "the query"
        ) from None
