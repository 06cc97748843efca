"""Vectors in a real PostgreSQL with pgvector: the format `sql` with `vectorColumn`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from batchinference.pipeline.errors import BadOutput
from plugins.messages import Messages
from support.jobs.table_writes import TableTarget

NEAREST = "SELECT id FROM rows ORDER BY vector <=> '[1, 0.1]' LIMIT 1"


def vectors_in(address: str, path: Path) -> TableTarget:
    fields = {"mode": "merge", "key": ["id"], "vectorColumn": "vector", "url": address}
    return TableTarget("postgresql", path, fields)


@pytest.fixture
def target(postgres: str, tmp_path: Path) -> TableTarget:
    target = vectors_in(postgres, tmp_path)
    target.execute("CREATE EXTENSION vector")
    return target


def rows(*vectors: list[float], first: int = 1) -> pa.Table:
    return pa.table({"id": range(first, first + len(vectors)), "vector": vectors})


def test_new_table_has_vectors_that_are_merged_and_searched(target: TableTarget) -> None:
    assert target.run(rows([1.0, 0.0], [0.0, 1.0]), dimensions=2)
    assert target.run(rows([0.1, 0.2], [3.0, 0.3], first=2), name="second")
    by_id = {row["id"]: row["vector"] for row in target.rows()}
    assert by_id == {1: [1.0, 0.0], 2: [0.1, 0.2], 3: [3.0, 0.3]}
    with target.engine().connect() as connection:
        assert connection.execute(sa.text(NEAREST)).scalar() == 3


def test_length_of_an_existing_column_counts(target: TableTarget, messages: Messages) -> None:
    target.execute("CREATE TABLE rows (id bigint PRIMARY KEY, vector vector(2))")
    table = target.table()
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
    target: TableTarget, column: str, fields: dict[str, Any], messages: Messages
) -> None:
    target.execute(f"CREATE TABLE rows (id bigint PRIMARY KEY, {column})")
    with messages.raises(BadOutput):
        target.open(**fields)


def test_database_without_pgvector_is_refused(
    postgres: str, tmp_path: Path, messages: Messages
) -> None:
    with messages.raises(BadOutput):
        vectors_in(postgres, tmp_path).open(dimensions=2)
    with messages.raises(BadOutput):
        vectors_in(f"sqlite:///{tmp_path}/data.db", tmp_path).open(dimensions=2)


def test_new_table_needs_the_length(target: TableTarget, messages: Messages) -> None:
    with messages.raises(BadOutput):
        target.open()
