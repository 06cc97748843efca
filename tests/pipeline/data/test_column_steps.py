"""Steps that select, drop and add columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from batchinference.pipeline.devices import Device
from batchinference.pipeline.failures import JobFailure
from batchinference.pipeline.steps import load_step
from batchinference.pipeline.steps.columns import with_column
from batchinference.spec.steps import Step

TABLE = pa.table({"a": [1, 2], "b": ["x", "y"], "path": ["s3://in/cats/1.png", "/data/dogs/2.png"]})


def run(table: pa.Table = TABLE, **step: object) -> pa.Table:
    loaded = load_step(Step.model_validate({"name": "step", **step}), Device())
    return loaded(table)  # type: ignore[operator]


def test_select_columns_keeps_the_order_of_the_list() -> None:
    assert run(selectColumns=["b", "a"]).equals(TABLE.select(["b", "a"]))


def test_drop_columns_keeps_the_other_columns() -> None:
    assert run(dropColumns=["a", "path"]).equals(TABLE.select(["b"]))


@pytest.mark.parametrize("step", [{"selectColumns": ["a", "c"]}, {"dropColumns": ["c"]}], ids=str)
def test_a_missing_column_fails_the_job(step: dict[str, object]) -> None:
    words = "step 'step' reads column 'c', but the columns here are a, b, path"
    with pytest.raises(JobFailure, match=words):
        run(**step)


@pytest.mark.parametrize(
    ("index", "expected"),
    [(-1, ["1.png", "2.png"]), (-2, ["cats", "dogs"]), (2, ["in", "dogs"])],
)
def test_label_from_path_takes_a_part_of_the_path(index: int, expected: list[str]) -> None:
    labelled = run(labelFromPath={"column": "class", "index": index})
    assert labelled.column("class").to_pylist() == expected
    assert labelled.drop_columns(["class"]).equals(TABLE)
    assert [path.split("/")[index] for path in TABLE["path"].to_pylist()] == expected


def test_label_from_path_replaces_a_column_in_place() -> None:
    labelled = run(labelFromPath={"column": "b", "index": -2})
    assert labelled.column_names == ["a", "b", "path"]
    assert labelled.column("b").to_pylist() == ["cats", "dogs"]


def test_a_path_without_the_part_is_an_error_of_its_row() -> None:
    with pytest.raises(ValueError, match=r"path '/data/dogs/2.png' has no part 4"):
        run(labelFromPath={"column": "class", "index": 4})


def test_label_from_path_needs_a_path_column() -> None:
    with pytest.raises(JobFailure, match="step 'step' reads column 'path', but the columns here"):
        run(TABLE.select(["a"]), labelFromPath={"column": "class", "index": -2})


def test_with_column_appends_or_replaces_in_place() -> None:
    values = pa.array([True, False])
    assert with_column(TABLE, "new", values).column_names == ["a", "b", "path", "new"]
    replaced = with_column(TABLE, "a", values)
    assert replaced.column_names == TABLE.column_names
    assert replaced.column("a").to_pylist() == [True, False]
