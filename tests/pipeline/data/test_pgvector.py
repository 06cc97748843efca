"""Vectors in a real PostgreSQL with pgvector: the format `sql` with `vectorColumn`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from batchinference.pipeline.errors import BadOutput
from plugins.messages import Messages
from support.jobs.table_writes import open_job, run_job, table_of
from support.outputs.tables import sql_rows

NEAREST = "SELECT id FROM rows ORDER BY vector <=> '[1, 0.1]' LIMIT 1"


@dataclass
class Database:
    place: Path
    address: str

    @property
    def engine(self) -> sa.Engine:
        return sa.create_engine(self.address)

    def execute(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(statement))

    def write(self, **fields: Any) -> dict[str, Any]:
        common = {"format": "sql", "table": "rows", "url": self.address, "mode": "merge"}
        own = {"path": str(self.place / "out"), "key": ["id"], "vectorColumn": "vector"}
        return {**common, **own, **fields}

    def run(self, vectors: dict[int, list[float]], **fields: Any) -> None:
        rows = pa.table({"id": list(vectors), "vector": list(vectors.values())})
        name = "-".join(map(str, vectors))
        path = str(self.place / f"out-{name}")
        assert run_job(self.place / name, self.write(path=path, **fields), [rows])


@pytest.fixture
def database(postgres: str, tmp_path: Path) -> Iterator[Database]:
    found = Database(tmp_path, postgres)
    found.execute("CREATE EXTENSION vector")
    return found


def test_new_table_has_vectors_that_are_merged_and_searched(database: Database) -> None:
    database.run({1: [1.0, 0.0], 2: [0.0, 1.0]}, dimensions=2)
    database.run({2: [0.1, 0.2], 3: [3.0, 0.3]})
    rows = {row["id"]: row["vector"] for row in sql_rows(database.engine)}
    assert rows == {1: [1.0, 0.0], 2: [0.1, 0.2], 3: [3.0, 0.3]}
    with database.engine.connect() as connection:
        assert connection.execute(sa.text(NEAREST)).scalar() == 3


def test_length_of_an_existing_column_counts(database: Database, messages: Messages) -> None:
    database.execute("CREATE TABLE rows (id bigint PRIMARY KEY, vector vector(2))")
    table = table_of(database.write())
    table.load()
    vectors = pa.array([[1, 2], [1], None, [0, 0]], pa.list_(pa.float64()))
    failed = table.unwritable(pa.table({"id": range(4), "vector": vectors}))
    assert sorted(failed) == [1, 2]
    messages.check(*failed.values())


@pytest.mark.parametrize(
    ("column", "fields"),
    [
        ("vector vector(2)", {"dimensions": 3}),
        ("vector vector", {}),
        ("vector double precision[]", {"dimensions": 2}),
        ("other vector(2)", {"dimensions": 2}),
        ("vector halfvec(2)", {"dimensions": 2}),
    ],
)
def test_unsuitable_tables_are_refused_before_rows_are_computed(
    database: Database, column: str, fields: dict[str, Any], messages: Messages
) -> None:
    database.execute(f"CREATE TABLE rows (id bigint PRIMARY KEY, {column})")
    with messages.raises(BadOutput):
        open_job(database.place / "in", database.write(**fields))


def test_database_without_pgvector_is_refused(
    postgres: str, tmp_path: Path, messages: Messages
) -> None:
    with messages.raises(BadOutput):
        open_job(tmp_path / "in", Database(tmp_path, postgres).write(dimensions=2))
    address = f"sqlite:///{tmp_path}/data.db"
    with messages.raises(BadOutput):
        open_job(tmp_path / "in", Database(tmp_path, address).write(dimensions=2))


def test_new_table_needs_the_length(database: Database, messages: Messages) -> None:
    with messages.raises(BadOutput):
        open_job(database.place / "in", database.write())
