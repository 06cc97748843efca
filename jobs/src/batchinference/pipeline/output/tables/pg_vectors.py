"""Vectors in PostgreSQL: columns with the type `vector` of pgvector."""

from __future__ import annotations

import sqlalchemy as sa

from batchinference.pipeline.errors import DATABASES_EXTRA, BadOutput, require_package
from batchinference.pipeline.output.tables.vectors import Vectors, vectors_of
from batchinference.spec.write import WriteSql

_HAS_TYPE = sa.text("SELECT count(*) FROM pg_type WHERE typname = 'vector'")


def register_vectors() -> None:
    """Make SQLAlchemy know the types of pgvector in existing tables."""
    require_package("write.vectorColumn", "pgvector", DATABASES_EXTRA, BadOutput)
    import pgvector.sqlalchemy  # noqa: F401 - registers them


def vector_type(vectors: Vectors) -> sa.types.TypeEngine[object]:
    """Return the SQL type of vectors."""
    from pgvector.sqlalchemy import Vector

    return Vector(vectors.dimensions)


def vectors_in(engine: sa.Engine, write: WriteSql, existing: sa.Table | None) -> Vectors | None:
    """Return the vectors of a table; None if the job writes none. Raises BadOutput if the table, or
    the database of a new one, cannot hold them."""
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
            if not connection.execute(_HAS_TYPE).scalar():
                raise BadOutput(
                    "write.vectorColumn: the database does not have pgvector. Run CREATE EXTENSION "
                    "vector in it"
                )
        return vectors_of(write, write.table, None)
    kind = existing.columns[column].type if column in existing.columns else None
    if type(kind).__name__ != "VECTOR":
        found = f"is {kind}, not a vector" if kind is not None else "is missing"
        raise BadOutput(
            f"write.vectorColumn: column '{column}' of the table '{write.table}' {found}. Change "
            "the table, or name another column"
        )
    dimensions = getattr(kind, "dim", None)
    known = Vectors(column, dimensions) if dimensions else None
    return vectors_of(write, write.table, known)
