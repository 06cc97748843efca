"""Steps that select, drop and add columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from batchinference.pipeline.arrow import with_column
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import load_step
from batchinference.spec.steps import Step

TABLE = pa.table({"a": [1, 2], "b": ["x", "y"], "path": ["s3://in/cats/1.png", "/data/dogs/2.png"]})


def run(table: pa.Table = TABLE, **step: object) -> pa.Table:
    loaded = load_step(Step.model_validate({"name": "step", **step}), Device())
    return loaded(table)  # type: ignore[operator]


def test_columns_are_selected_in_order_or_dropped() -> None:
    assert run(selectColumns=["b", "a"]).equals(TABLE.select(["b", "a"]))
    assert run(dropColumns=["a", "path"]).equals(TABLE.select(["b"]))


def test_missing_column_fails_the_job() -> None:
    steps: list[dict[str, object]] = [{"selectColumns": ["a", "c"]}, {"dropColumns": ["c"]}]
    for step in steps:
        with pytest.raises(JobFailure, match="step 'step' reads column 'c', but the columns here"):
            run(**step)
    label = {"column": "class", "index": 4}
    with pytest.raises(JobFailure, match="step 'step' reads column 'path', but the columns here"):
        run(TABLE.select(["a"]), labelFromPath=label)
    with pytest.raises(ValueError, match=r"path '/data/dogs/2.png' has no part 4"):
        run(labelFromPath=label)


def test_label_from_path_takes_a_part_of_the_path() -> None:
    parts = {-1: ["1.png", "2.png"], -2: ["cats", "dogs"], 2: ["in", "dogs"]}
    for index, expected in parts.items():
        labelled = run(labelFromPath={"column": "class", "index": index})
        assert labelled.column("class").to_pylist() == expected, index
        assert labelled.drop_columns(["class"]).equals(TABLE), index
    replaced = run(labelFromPath={"column": "b", "index": -2})
    assert replaced.column_names == ["a", "b", "path"]
    assert replaced.column("b").to_pylist() == ["cats", "dogs"]


def test_with_column_appends_or_replaces_in_place() -> None:
    values = pa.array([True, False])
    assert with_column(TABLE, "new", values).column_names == ["a", "b", "path", "new"]
    replaced = with_column(TABLE, "a", values)
    assert replaced.column_names == TABLE.column_names
    assert replaced.column("a").to_pylist() == [True, False]
