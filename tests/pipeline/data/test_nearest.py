"""The nearest step: each row's most similar rows of a finished output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline.arrow import to_table
from batchinference.pipeline.errors import BadInput, JobFailure
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import TransformResult, check_step, load_step
from batchinference.spec.steps import Step
from support.outputs.builders import embedded, finished_output, vectors

WIDTH = 6
INDEX = vectors(40, WIDTH)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a finished output of 40 rows in two files."""
    files = [
        embedded(INDEX[part], path=[f"{n}.txt" for n in part], pixels=[[[n]] for n in part])
        for part in (range(15), range(15, 40))
    ]
    return finished_output(tmp_path_factory.mktemp("index") / "out", *files)


def step(index: str, **fields: Any) -> Step:
    nearest = {"path": index, "column": "vector", "output": "matches", **fields}
    return Step.model_validate({"name": "near", "nearest": nearest})


def run(index: str, batch: pa.Table, **fields: Any) -> pa.Table | TransformResult:
    return load_step(step(index, **fields), Device())(batch)


def matches(index: str, batch: pa.Table, **fields: Any) -> list[list[Row] | None]:
    table = run(index, batch, **fields)
    assert isinstance(table, pa.Table)
    found: list[list[Row] | None] = table.column("matches").to_pylist()
    return found


def queries(matrix: np.ndarray, **columns: Any) -> pa.Table:
    return embedded(matrix, **columns).rename_columns([*columns, "vector"])


def expected(query: np.ndarray, k: int) -> list[Row]:
    similarities = INDEX @ query / np.linalg.norm(INDEX, axis=1) / np.linalg.norm(query)
    return [
        {"similarity": pytest.approx(similarities[row], abs=1e-5), "path": f"{row}.txt"}
        for row in np.argsort(-similarities)[:k]
    ]


def test_rows_get_their_nearest_rows(index: str) -> None:
    matrix = vectors(9, WIDTH, seed=1)
    for k in (1, 7):
        assert matches(index, queries(matrix), k=k) == [expected(query, k) for query in matrix]
    tensors = to_table({"vector": matrix})
    assert matches(index, tensors) == [expected(query, 5) for query in matrix]


def test_other_columns_are_kept(index: str) -> None:
    batch = queries(vectors(3, WIDTH), n=[1, 2, 3])
    table = run(index, batch)
    assert isinstance(table, pa.Table)
    assert table.column_names == ["n", "vector", "matches"]
    assert table.select(["n", "vector"]).equals(batch)


def test_selected_columns_are_returned(index: str) -> None:
    nulls = pa.table({"vector": pa.array([None], pa.list_(pa.float32()))})
    kinds = []
    for batch in (queries(vectors(1, WIDTH)), nulls):
        table = run(index, batch, columns=["pixels", "path"], k=1)
        assert isinstance(table, pa.Table)
        kinds.append(table.schema.field("matches").type)
    assert str(kinds[0].value_type).startswith("struct<similarity: float, pixels: list<")
    assert kinds[0] == kinds[1]


def test_row_without_embedding_has_no_matches(index: str) -> None:
    lists = [None, INDEX[3], [0.0] * WIDTH, [None] * WIDTH, INDEX[20]]
    batch = pa.table({"vector": pa.array(lists, pa.list_(pa.float32()))})
    found = matches(index, batch, k=1)
    assert [row and row[0]["path"] for row in found] == [None, "3.txt", None, None, "20.txt"]


def test_embedding_of_another_width_fails_its_row_only(index: str) -> None:
    lists = pa.array([INDEX[0], [1.0, 2.0], None, [], INDEX[2]], pa.list_(pa.float32()))
    changed = run(index, pa.table({"n": range(5), "vector": lists}), k=1)
    assert isinstance(changed, TransformResult)
    assert changed.parents.tolist() == [0, 2, 4]
    assert changed.table.column("n").to_pylist() == [0, 2, 4]
    paths = [row and row[0]["path"] for row in changed.table.column("matches").to_pylist()]
    assert paths == ["0.txt", None, "2.txt"]
    assert sorted(changed.failed) == [1, 3]
    assert str(changed.failed[1]) == (
        f"an embedding of 2 numbers, and those of '{index}' have {WIDTH}"
    )


def test_batch_may_fail_entirely(index: str) -> None:
    changed = run(index, pa.table({"vector": pa.array([[1.0], [2.0]])}))
    assert isinstance(changed, TransformResult)
    assert (changed.table.num_rows, sorted(changed.failed)) == (0, [0, 1])
    assert changed.table.schema.field("matches").type.value_type.names == ["similarity", "path"]


def test_index_smaller_than_k_returns_all_rows(tmp_path: Path) -> None:
    small = finished_output(tmp_path / "out", embedded(INDEX[:2], n=[0, 1]))
    found = matches(small, queries(INDEX[:1]), k=10)
    assert [[match["n"] for match in row or []] for row in found] == [[0, 1]]


def test_column_without_embeddings_ends_the_job(index: str) -> None:
    with pytest.raises(JobFailure, match="compares embeddings, and column 'vector' is string"):
        run(index, pa.table({"vector": ["a"]}))
    with pytest.raises(JobFailure, match="reads column 'vector', but the columns here are text"):
        run(index, pa.table({"text": ["a"]}))


def test_unsearchable_output_is_rejected_at_check(index: str, tmp_path: Path) -> None:
    check_step(step(index))
    similar = finished_output(tmp_path / "similar", embedded(INDEX[:2], similarity=[1, 2]))
    nulls = pa.table({"embedding": pa.array([None], pa.list_(pa.float32()))})
    empty = finished_output(tmp_path / "empty", nulls)
    for path, fields, reason in (
        (str(tmp_path / "nowhere"), {}, r"^step 'near': '.*nowhere' does not exist$"),
        (index, {"indexColumn": "path"}, r"^step 'near': column 'path' of '.*' is string"),
        (
            index,
            {"columns": ["path", "size"]},
            r"^step 'near': '.*' has no column 'size', only pa",
        ),
        (similar, {}, r"has a column 'similarity' of its own: choose 'columns'"),
        (empty, {}, r"no row of '.*empty' has an embedding"),
    ):
        with pytest.raises(BadInput, match=reason):
            check_step(step(path, **fields))
