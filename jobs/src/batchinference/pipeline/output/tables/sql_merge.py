"""Inserts rows into database tables, or updates the existing row with the same key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from batchinference.pipeline.errors import BadOutput

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
    """Raise BadOutput if the database cannot update rows by this key, because it does not support
    this, or because the table has no unique constraint on the key."""
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
    """Return the columns of each primary key, unique constraint and unique index of a table, except
    indexes of expressions or of only some rows."""
    inspector, where = sa.inspect(engine), (table.name, table.schema)
    indexes = [
        index["column_names"]
        for index in inspector.get_indexes(*where)
        if index["unique"]
        and not any(option.endswith("_where") for option in index.get("dialect_options", {}))
    ]
    found: list[Sequence[Any]] = [
        inspector.get_pk_constraint(*where)["constrained_columns"],
        *(each["column_names"] for each in inspector.get_unique_constraints(*where)),
        *(columns for columns in indexes if None not in columns),
    ]
    return {frozenset(columns) for columns in found if columns}


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
    """Insert rows. If the table has a row with the same key, update its columns that `rows` have.
    Raises BadOutput if the database treats different keys as equal."""
    if rows:
        connection.execute(_statement(connection.dialect.name, table, key, [*rows[0]]), rows)
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
    """Raise BadOutput if the table lacks one of these keys, because its collation or types treat
    it as equal to another one. One row of the job may then have replaced another one."""
    columns = sa.tuple_(*(table.columns[name] for name in key))
    wanted = [tuple(row[name] for name in key) for row in rows]
    chosen = sa.select(*(table.columns[name] for name in key)).where(columns.in_(wanted))
    stored = set(map(tuple, connection.execute(chosen)))
    for values in wanted:
        if values not in stored:
            raise BadOutput(
                f"write.key: the table '{table.fullname}' takes a key for equal to another one "
                f"({', '.join(map(str, values))}). Give its columns types and a collation that "
                "compare keys exactly"
            )
