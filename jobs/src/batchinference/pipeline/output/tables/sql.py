"""Writes database tables: inserts or updates the rows of a job in one transaction."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from batchinference.json_text import to_json
from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.table_commit import Fence, TableFiles, has_rows_error
from batchinference.pipeline.errors import (
    DATABASES_EXTRA,
    BadOutput,
    UnwritableValue,
    mask_secrets,
    require_package,
)
from batchinference.pipeline.non_finite_counts import non_finite_values
from batchinference.pipeline.output.tables import Row, check_case, check_columns
from batchinference.pipeline.output.tables.keys import MergingTable
from batchinference.pipeline.output.tables.sql_types import (
    check_generated,
    check_keys,
    check_new_names,
    check_required,
    check_values,
)
from batchinference.pipeline.output.tables.vectors import Vectors, vectors_of
from batchinference.pipeline.output.writers.parquet import storable
from batchinference.pipeline.storage.arrow_files import batches_in
from batchinference.pipeline.type_widening import (
    exact_cast,
    is_bytes,
    is_text,
    nested_types,
    plain_type,
)
from batchinference.spec.databases import sqlite_file
from batchinference.spec.write import WriteSql
from batchinference.text import counted

MARKS = "batchinference_commits"
"""A table in the user's schema with two rows for each commit: the ID of its pass, and the ID of the
series (all passes over these rows). The transaction that writes the job's rows inserts both IDs."""
INSERT_ROWS = 1000
TRANSACTIONAL = ("postgresql", "sqlite")
"""Databases in which a failed transaction creates no tables."""
DATABASE = "the database"
"""The name of the output in messages about missing types."""
CASE_SENSITIVE = ("postgresql", "oracle")
"""Databases that distinguish column names by case."""
_COUNTS_ROWS = {"preserve_rowcount": True}
"""The option with which SQLAlchemy returns the number of rows that a statement has stored."""
_HAS_VECTORS = sa.text("SELECT count(*) FROM pg_type WHERE typname = 'vector'")


class SqlTable(MergingTable):
    def __init__(self, write: WriteSql) -> None:
        self._write = write
        schema, _, self._name = write.table.rpartition(".")
        self._schema = schema or None
        self.key = tuple(write.key or ())
        self._existing: sa.Table | None = None
        """The table when it was last read; None if it did not exist."""
        self._dialect = ""
        self.vectors: Vectors | None = None

    def load(self) -> None:
        engine = self._engine()
        self._dialect = engine.dialect.name
        self._existing = existing = self.existing()
        self.vectors = _vectors_in(engine, self._write, existing)
        if existing is not None and self._write.columns:
            check_required(self._write.columns, existing, self._dialect)
        if self.key:
            check_upsert(engine, existing, self.key)

    def convert(self, table: pa.Table) -> pa.Table:
        existing = self._existing
        if existing is not None:
            names = existing.columns.keys()
            check_columns(table.column_names, names, f"write.table: '{self._write.table}'")
        else:
            check_new_names(table.column_names, self._dialect)
            if self._dialect not in CASE_SENSITIVE:
                check_case(table.column_names)
        table = storable(tensors_to_lists(table), DATABASE)
        types = self._types(table.schema)
        table = _portable(table, types)
        check_keys(table.schema, types, self.key, self._dialect)
        check_values(table, types, self._dialect, new=existing is None)
        if existing is not None:
            check_generated(table, existing, self._dialect)
        return self.vectors.cast(table) if self.vectors else table

    def _types(self, rows: pa.Schema) -> dict[str, Any]:
        """Return the SQL type of each column of the table. A new table has columns for `rows`."""
        if self._existing is not None:
            return {name: column.type for name, column in self._existing.columns.items()}
        return {field.name: _type(field.type) for field in rows}

    def files(self, table: pa.Table) -> Iterator[tuple[str, memoryview]]:
        if self._existing is not None:
            check_required(table.column_names, self._existing, self._dialect)
        return super().files(table)

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        table = tensors_to_lists(table)
        errors = self.vectors.unwritable(table) if self.vectors else {}
        for field in table.schema if self._dialect == "postgresql" else ():
            problem = f"column '{field.name}' has a NUL character, which PostgreSQL lacks"
            rows = self._rows_with_nul(table, field)
            errors |= dict.fromkeys(rows, UnwritableValue(f"write: {problem}. Remove it"))
        return errors

    def _rows_with_nul(self, table: pa.Table, field: pa.Field) -> list[int]:
        """Return the indexes of the rows with a NUL character that PostgreSQL cannot store in this
        column. Only columns of the type `json` can store NUL characters, as escapes."""
        column = table.column(field.name)
        if is_text(plain_type(field.type)):
            has_nul = pc.match_substring(column.cast(pa.large_string()), "\0")
            return list(pc.indices_nonzero(has_nul.fill_null(False)).to_pylist())
        existing = None if self._existing is None else self._existing.columns.get(field.name)
        stored = sa.JSON() if existing is None else existing.type
        is_json = isinstance(stored, sa.JSON) and not isinstance(stored, postgresql.JSONB)
        if is_json or not any(map(is_text, nested_types(field.type))):
            return []
        return [row for row, value in enumerate(column.to_pylist()) if _has_nul(value)]

    def nulled_rows(self, table: pa.Table) -> dict[int, int]:
        """Return the number of values that become null, by row index. NaN and infinity in nested
        values become null, because JSON lacks them. In SQLite, every NaN becomes null."""
        table = tensors_to_lists(table)
        nested = [field.name for field in table.schema if pa.types.is_nested(field.type)]
        nested = [name for name in nested if name != self._write.vector_column]
        rows = Counter(non_finite_values(table.select(nested)))
        for column in self._floats_in_sqlite(table):
            rows.update(pc.indices_nonzero(pc.is_nan(column)).to_pylist())
        return dict(rows)

    def unsigned_zeros(self, table: pa.Table) -> dict[int, int]:
        """SQLite stores floats without a fraction as integers."""
        rows = Counter[int]()
        for column in self._floats_in_sqlite(table):
            values = column.fill_null(1).to_numpy()
            rows.update(np.flatnonzero((values == 0) & np.signbit(values)).tolist())
        return dict(rows)

    def _floats_in_sqlite(self, table: pa.Table) -> list[pa.ChunkedArray]:
        """Return the columns of floats as float64 if the database is SQLite, else no columns."""
        if not sqlite_file(self._url()):
            return []
        floats = (each for each in table.columns if pa.types.is_floating(plain_type(each.type)))
        return [column.cast(pa.float64()) for column in floats]

    def commit_count(self, mark: str) -> int:
        """Return 1 if a commit has this mark, even if the table was dropped since, else 0."""
        with self._engine().connect() as connection:
            marks = self._marks()
            if not sa.inspect(connection).has_table(MARKS, schema=self._schema):
                return 0
            return len(connection.execute(sa.select(marks).where(marks.c.mark == mark)).all())

    def register(self, rows: TableFiles, fence: Fence) -> None:
        fence.retry_conflicts(lambda: self._register(rows, fence), (Blocked,))

    def _register(self, rows: TableFiles, fence: Fence) -> None:
        if self._was_committed(fence):
            return
        self.load()  # others may have created or changed the table
        existing = self._existing
        if existing is None and not rows.schema:
            return
        table = self._new(self.columns(rows)) if existing is None else existing
        fence.check()
        try:
            self._commit(self._engine(), table, self._batches(rows), fence, is_new=existing is None)
        except Exception as error:
            if self._was_committed(fence):
                return
            if is_blocked(error):
                raise Blocked(_short_message(error)) from None
            if isinstance(error, (BadOutput, Blocked)):
                raise
            raise BadOutput(
                f"write.table: the rows could not be inserted into '{self._write.table}' "
                f"({_short_message(error)})"
            ) from None

    def _batches(self, rows: TableFiles) -> Iterator[list[Row]]:
        """Yield the rows of a job. Raises BadOutput if the rows do not fit the table. The table may
        have changed since the rows were committed."""
        for batch in (batch for file in rows.files for batch in batches_in(file, INSERT_ROWS)):
            yield self.convert(pa.Table.from_batches([batch])).to_pylist()

    def _commit(
        self,
        engine: sa.Engine,
        table: sa.Table,
        batches: Iterator[list[Row]],
        fence: Fence,
        *,
        is_new: bool,
    ) -> None:
        """Put the rows into a table in one transaction. If possible, the transaction also creates a
        new table. A table is never dropped after an error, because another job may write to it."""
        marks = self._marks()
        _create(marks, engine)
        creates = is_new and engine.dialect.name in TRANSACTIONAL
        if is_new and not creates:  # creating a table would end the transaction
            _create_new(table, engine)
        with _isolated(engine).begin() as connection:
            # the primary key of the marks allows only one commit per series
            for mark in (fence.series_id, fence.commit_id):
                connection.execute(sa.insert(marks).values(mark=mark))
            if creates:
                _create_new(table, connection)
            self._put(connection, table, batches)

    def _put(
        self, connection: sa.Connection, table: sa.Table, batches: Iterator[list[Row]]
    ) -> None:
        """Insert or merge rows. Raises BadOutput if the mode is `error` and the table has rows."""
        if not self._write.adds and connection.dialect.name == "postgresql":
            _wait_for_other_jobs(connection, table)
        first = sa.select(table).limit(1)
        if self._write.mode == "error" and connection.execute(first).first() is not None:
            raise has_rows_error(self._write)
        if self._write.mode == "overwrite":
            connection.execute(sa.delete(table))
        is_counted = connection.dialect.name == "sqlite" and _has_rules(connection, table)
        overwrites = self._write.mode == "overwrite"
        count = _row_count(connection, table) if is_counted and not overwrites else 0
        for batch in batches:
            if is_counted:
                count += self._new_rows(connection, table, batch)
            self._put_batch(connection, table, batch)
        if is_counted:
            _check_count(table, count, _row_count(connection, table))

    def _new_rows(self, connection: sa.Connection, table: sa.Table, batch: list[Row]) -> int:
        """Return the number of rows of a batch whose key is not in the table."""
        known = _stored_keys(connection, table, self.key, batch) if self.key and batch else ()
        return len(batch) - len(known)

    def _put_batch(self, connection: sa.Connection, table: sa.Table, batch: list[Row]) -> None:
        """Insert or merge rows. Raises BadOutput if PostgreSQL does not store each row."""
        if self.key:
            upsert(connection, table, self.key, batch)
            return
        result = connection.execute(sa.insert(table), batch, execution_options=_COUNTS_ROWS)
        if connection.dialect.name == "postgresql" and result.supports_sane_multi_rowcount():
            _check_count(table, len(batch), result.rowcount)

    def keys_in(self, existing: sa.Table) -> Iterator[pa.Table]:
        columns = [existing.columns[name] for name in self.key]
        with self._engine().connect().execution_options(yield_per=INSERT_ROWS) as connection:
            for rows in connection.execute(sa.select(*columns)).mappings().partitions():
                yield pa.Table.from_pylist([dict(row) for row in rows])

    def _was_committed(self, fence: Fence) -> bool:
        """Return whether the database has this commit, for example after a lost response. Return
        False if the database cannot be read.

        Raises BadOutput if another pass has committed the rows."""
        try:
            counts = {mark: self.commit_count(mark) for mark in (fence.commit_id, fence.series_id)}
        except (SQLAlchemyError, BadOutput):
            return False
        return fence.has_committed(counts.__getitem__)

    def head(self, existing: sa.Table, count: int) -> list[Row]:
        with self._engine().connect() as connection:
            rows = connection.execute(sa.select(existing).limit(count))
            return [dict(row) for row in rows.mappings()]

    def _url(self) -> str:
        """Return the URL of the database; empty if the environment variable is not set."""
        return self._write.url or os.environ.get(self._write.url_env or "", "")

    def _engine(self) -> sa.Engine:
        url = self._url()
        if not url:
            raise BadOutput(f"write.urlEnv: the variable {self._write.url_env} is not set")
        try:
            return sa.create_engine(url, json_serializer=to_json)
        except ModuleNotFoundError as error:
            problem = f"the driver is not installed ({error.name}). Install it"
            raise BadOutput(f"write.url: {problem}") from None
        except SQLAlchemyError:
            fix = "Write sqlite:///FILE, or an address such as postgresql+psycopg://HOST/DATABASE"
            raise BadOutput(f"write.url: not a valid URL of SQLAlchemy. {fix}") from None

    def existing(self) -> sa.Table | None:
        engine = self._engine()
        if self._write.vector_column:
            require_package("write.vectorColumn", "pgvector", DATABASES_EXTRA, BadOutput)
            import pgvector.sqlalchemy  # noqa: F401 - makes its types known to SQLAlchemy
        try:
            if not sa.inspect(engine).has_table(self._name, schema=self._schema):
                return None
        except SQLAlchemyError as error:
            if is_blocked(error):
                raise Blocked(_short_message(error)) from None
            problem = f"the database cannot be used ({_short_message(error)})"
            raise BadOutput(f"write.url: {problem}") from None
        table = sa.Table(self._name, sa.MetaData(), schema=self._schema, autoload_with=engine)
        for column in table.columns:
            if isinstance(column.type, sa.JSON):  # a null, and not the JSON text null
                column.type.none_as_null = True
        return table

    def _new(self, schema: pa.Schema) -> sa.Table:
        kinds = {field.name: _type(field.type) for field in schema}
        if self.vectors is not None:
            from pgvector.sqlalchemy import Vector

            kinds[self.vectors.column] = Vector(self.vectors.dimensions)
        columns: list[Any] = [
            key_column(name, kind) if name in self.key else sa.Column(name, kind)
            for name, kind in kinds.items()
        ]
        return sa.Table(self._name, sa.MetaData(), *columns, schema=self._schema)

    def _marks(self) -> sa.Table:
        column = sa.Column("mark", sa.String(128), primary_key=True)
        return sa.Table(MARKS, sa.MetaData(), column, schema=self._schema)


def _has_nul(value: Any) -> bool:
    """Return whether a text in a value, at any depth, has a NUL character."""
    if isinstance(value, dict):
        return any(map(_has_nul, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return any(map(_has_nul, value))
    return isinstance(value, str) and "\0" in value


def _portable(table: pa.Table, types: dict[str, Any]) -> pa.Table:
    """Return the table with times in UTC. UUIDs become texts if their database column has no type
    for UUIDs."""
    for index, (name, kind) in enumerate(zip(table.column_names, table.schema.types, strict=True)):
        is_other = kind == pa.uuid() and not isinstance(types.get(name), sa.Uuid)
        utc = pa.timestamp(kind.unit, "UTC") if getattr(kind, "tz", None) else kind
        wanted = pa.string() if is_other else utc
        if wanted != kind:
            table = table.set_column(index, name, exact_cast(table.column(index), wanted))
    return table


def _isolated(engine: sa.Engine) -> sa.Engine:
    """Return the engine. For PostgreSQL, each statement of a transaction sees earlier commits of
    other writers, so updates of other writers are no conflicts."""
    if engine.dialect.name != "postgresql":
        return engine
    return engine.execution_options(isolation_level="READ COMMITTED")


def _wait_for_other_jobs(connection: sa.Connection, table: sa.Table) -> None:
    """Wait until other jobs that called this function for this PostgreSQL table have ended their
    transactions. Otherwise two jobs could see an empty table, or replace only earlier rows."""
    name = connection.dialect.identifier_preparer.format_table(table)
    number = sa.cast(sa.cast(name, postgresql.REGCLASS), sa.BigInteger)
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(number)))


def _create(table: sa.Table, engine: sa.Engine) -> None:
    """Create a table if it does not exist. Another job may create it at the same time."""
    try:
        table.create(engine, checkfirst=True)
    except SQLAlchemyError:
        if not sa.inspect(engine).has_table(table.name, schema=table.schema):
            raise


def _create_new(table: sa.Table, bind: sa.Engine | sa.Connection) -> None:
    """Create a table. Raises Blocked if another job has created it. The next try then compares the
    rows with the columns of this table."""
    try:
        table.create(bind)
    except SQLAlchemyError as error:
        if not sa.inspect(bind.engine).has_table(table.name, schema=table.schema):
            raise
        raise Blocked(_short_message(error)) from None


def _has_rules(connection: sa.Connection, table: sa.Table) -> bool:
    """Return whether a table of SQLite may have triggers, or rules such as ON CONFLICT IGNORE."""
    query = sa.text("SELECT type, sql FROM sqlite_master WHERE lower(tbl_name) = lower(:name)")
    parts = connection.execute(query, {"name": table.name})
    has_rules = any(kind == "trigger" or "conflict" in (sql or "").lower() for kind, sql in parts)
    return has_rules or table.schema is not None  # the query sees only the main schema


def _row_count(connection: sa.Connection, table: sa.Table) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def _check_count(table: sa.Table, wanted: int, stored: int) -> None:
    """Raise BadOutput if the database has stored another number of rows. Rules or triggers of the
    table then leave out, replace or add rows without an error."""
    if stored != wanted:
        raise BadOutput(
            f"write.table: the conflict rules (such as ON CONFLICT REPLACE) or triggers of "
            f"'{table.fullname}' leave out, replace or add rows ({counted(stored, 'row')} instead "
            f"of {wanted}). Remove them, or choose another table. No row is computed again"
        )


def _type(kind: pa.DataType) -> Any:
    types, kind = pa.types, plain_type(kind)
    if types.is_boolean(kind):
        return sa.Boolean()
    if types.is_integer(kind):
        return sa.BigInteger()
    if types.is_floating(kind):
        return sa.Double()
    if types.is_decimal(kind):
        return sa.Numeric(kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return sa.DateTime(timezone=kind.tz is not None)
    if types.is_date(kind):
        return sa.Date()
    if types.is_time(kind):
        return sa.Time()
    if is_bytes(kind):
        return sa.LargeBinary()
    return sa.JSON(none_as_null=True) if types.is_nested(kind) else sa.Text()


def _short_message(error: Exception) -> str:
    """Return the error message of the database, without the SQL statement and its values."""
    return mask_secrets(" ".join(str(getattr(error, "orig", None) or error).split())[:300])


def _vectors_in(engine: sa.Engine, write: WriteSql, existing: sa.Table | None) -> Vectors | None:
    """Return the vectors that the job writes; None if it writes none. Raises BadOutput if an
    existing table, or the database of a new table, cannot hold vectors."""
    column = write.vector_column
    if column is None:
        return None
    if engine.dialect.name != "postgresql":
        raise BadOutput(
            f"write.vectorColumn: only PostgreSQL has vectors, not {engine.dialect.name}. Remove "
            "vectorColumn to store lists as JSON"
        )
    if existing is None:
        with engine.connect() as connection:
            if not connection.execute(_HAS_VECTORS).scalar():
                raise BadOutput(
                    "write.vectorColumn: the database does not have pgvector. Run CREATE EXTENSION "
                    "vector in it"
                )
        return vectors_of(write, write.table, None)
    kind = existing.columns[column].type if column in existing.columns else None
    if type(kind).__name__ != "VECTOR":
        problem = f"is {kind}, not a vector" if kind is not None else "is missing"
        raise BadOutput(
            f"write.vectorColumn: column '{column}' of the table '{write.table}' {problem}. Change "
            "the table, or name another column"
        )
    dimensions = getattr(kind, "dim", None)
    known = Vectors(column, dimensions) if dimensions else None
    return vectors_of(write, write.table, known)


_ON_CONFLICT: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
_ON_DUPLICATE = ("mysql", "mariadb")
_BLOCKED_STATES = ("40001", "40P01", "55P03")
"""SQLSTATE of PostgreSQL: serialization failure, deadlock, lock not available."""
_BLOCKED_CODES = (1205, 1213)
"""Error codes of MySQL: lock wait timeout, deadlock."""
_SQLITE_BUSY, _SQLITE_LOCKED = 5, 6
MYSQL_LENGTH = 255
"""The maximum length of key texts in new tables of MySQL, which requires a limit."""


class Blocked(Exception):
    """A transaction has failed because of locks of other writers. It can be retried."""


def is_blocked(error: Exception) -> bool:
    """Return whether a transaction has failed because of locks of other writers."""
    cause: Any = getattr(error, "orig", None)
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    return (
        code in (_SQLITE_BUSY, _SQLITE_LOCKED)
        or getattr(cause, "sqlstate", None) in _BLOCKED_STATES
        or getattr(cause, "pgcode", None) in _BLOCKED_STATES
        or (bool(getattr(cause, "args", ())) and cause.args[0] in _BLOCKED_CODES)
    )


def check_upsert(engine: sa.Engine, existing: sa.Table | None, key: Sequence[str]) -> None:
    """Raise BadOutput if rows cannot be updated by this key. Either the database has no updates by
    key, or the unique constraints of the table do not fit the key."""
    name = engine.dialect.name
    if name not in (*_ON_CONFLICT, *_ON_DUPLICATE):
        raise BadOutput(
            f"write.mode: merge is not possible in this database ({name}), only in SQLite, "
            "PostgreSQL and MySQL. Set the mode to append, or write to one of these"
        )
    if existing is None:
        return
    unique = _unique_columns(engine, existing)
    if frozenset(key) not in unique:
        raise BadOutput(
            f"write.key: the table '{existing.fullname}' has no unique constraint on exactly these "
            f"columns ({', '.join(key)}). Add one, or name the columns of one in write.key"
        )
    if name in _ON_DUPLICATE and len(unique) > 1:
        raise BadOutput(
            f"write.key: {name} finds rows by all unique constraints of a table, and "
            f"'{existing.fullname}' has {len(unique)} of them. Remove the others"
        )


def _unique_columns(engine: sa.Engine, table: sa.Table) -> set[frozenset[str]]:
    """Return the columns of each primary key, unique constraint and unique index of a table. Leave
    out indexes with expressions or with a condition on rows."""
    inspector, where = sa.inspect(engine), (table.name, table.schema)
    indexes = [
        index["column_names"]
        for index in inspector.get_indexes(*where)
        if index["unique"]
        and not any(option.endswith("_where") for option in index.get("dialect_options", {}))
    ]
    keys: list[Sequence[Any]] = [
        inspector.get_pk_constraint(*where)["constrained_columns"],
        *(each["column_names"] for each in inspector.get_unique_constraints(*where)),
        *(columns for columns in indexes if None not in columns),
    ]
    return {frozenset(columns) for columns in keys if columns}


def key_column(name: str, kind: Any) -> sa.Column[Any]:
    """Return a column of the primary key of a new table."""
    if isinstance(kind, sa.Text):  # by default, MySQL ignores case when it compares texts
        exact = mysql.VARCHAR(MYSQL_LENGTH, collation="utf8mb4_bin")
        kind = kind.with_variant(exact, *_ON_DUPLICATE)
    elif isinstance(kind, sa.LargeBinary):
        kind = kind.with_variant(mysql.VARBINARY(MYSQL_LENGTH), *_ON_DUPLICATE)
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def upsert(
    connection: sa.Connection, table: sa.Table, key: Sequence[str], rows: list[dict[str, Any]]
) -> None:
    """Insert rows. If the table has a row with the same key, update the columns of that row that
    are in `rows`. Raises BadOutput if the database treats different keys as equal, or does not
    store each row."""
    if not rows:
        return
    dialect, columns = connection.dialect.name, [*rows[0]]
    statement = _statement(dialect, table, key, columns)
    result = connection.execute(statement, rows, execution_options=_COUNTS_ROWS)
    # MySQL counts an updated row twice, and rows that are only a key may exist already
    is_counted = dialect in _ON_CONFLICT and len(columns) > len(key)
    if is_counted and result.supports_sane_multi_rowcount():
        _check_count(table, len(rows), result.rowcount)
    _check_keys(connection, table, key, rows)


def _statement(dialect: str, table: sa.Table, key: Sequence[str], columns: list[str]) -> Any:
    others = [name for name in columns if name not in key]
    if dialect in _ON_DUPLICATE:
        insert = mysql.insert(table)
        changes = {name: insert.inserted[name] for name in others or key[:1]}
        return insert.on_duplicate_key_update(changes)
    insert = _ON_CONFLICT[dialect](table)
    if not others:
        return insert.on_conflict_do_nothing(index_elements=key)
    changes = {name: insert.excluded[name] for name in others}
    return insert.on_conflict_do_update(index_elements=key, set_=changes)


def _check_keys(
    connection: sa.Connection, table: sa.Table, key: Sequence[str], rows: list[dict[str, Any]]
) -> None:
    """Raise BadOutput if the table now lacks the key of one of these rows. Then its collation or
    types treat different keys as equal, and the row may have replaced a row with another key."""
    stored = _stored_keys(connection, table, key, rows)
    for values in (tuple(row[name] for name in key) for row in rows):
        if values not in stored:
            raise BadOutput(
                f"write.key: the table '{table.fullname}' treats a key as equal to another one "
                f"({', '.join(map(str, values))}). Give its columns types and a collation that "
                "compare keys exactly"
            )


def _stored_keys(
    connection: sa.Connection, table: sa.Table, key: Sequence[str], rows: list[dict[str, Any]]
) -> set[tuple[Any, ...]]:
    """Return the keys in the table that rows have."""
    columns = sa.tuple_(*(table.columns[name] for name in key))
    wanted = [tuple(row[name] for name in key) for row in rows]
    chosen = sa.select(*(table.columns[name] for name in key)).where(columns.in_(wanted))
    return set(map(tuple, connection.execute(chosen)))
