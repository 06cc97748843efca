"""Steps that select, drop and add columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import TransformResult, load_step
from batchinference.spec.steps import Step
from plugins.messages import Messages

TABLE = pa.table({"a": [1, 2], "b": ["x", "y"], "path": ["s3://in/cats/1.png", "/data/dogs/2.png"]})


def run(table: pa.Table = TABLE, **step: object) -> pa.Table:
    loaded = load_step(Step.model_validate({"name": "step", **step}), Device())
    return loaded(table)  # type: ignore[operator]


def test_columns_are_selected_in_order_or_dropped() -> None:
    assert run(selectColumns=["b", "a"]).equals(TABLE.select(["b", "a"]))
    assert run(dropColumns=["a", "path"]).equals(TABLE.select(["b"]))


NUMBERS = {"n": [1, -2, None], "f": [1.9, -1.9, None], "s": [" 7 ", "x", None]}
COMPUTED = {
    "n * 2 + 1": [3, -3, None],
    "'n=' + str(n)": ["n=1", "n=-2", None],
    "strip(s) + s": ["7 7 ", "xx", None],
    "len(s)": [3, 1, None],
    "int(f)": [1, -1, None],
    "float(n) / 4": [0.25, -0.5, None],
    "int(strip(s)) if contains(s, '7') else -1": [7, -1, -1],
    "'low' if n < 0 else 'high' if n > 0 else 'none'": ["high", "low", "none"],
    "s if n is None else None": [None, None, None],
    "n if n > 0 else f": [1.0, -1.9, None],
    "n > 0": [True, False, None],
    "s": [" 7 ", "x", None],
    "'web'": ["web"] * 3,
    "1 < 2": [True] * 3,
    "None": [None] * 3,
}


@pytest.mark.parametrize("expression", COMPUTED)
def test_column_is_computed(expression: str) -> None:
    table = pa.table(NUMBERS)
    if "int(strip" in expression:
        table = table.slice(0, 1)
    computed = run(table, addColumns={"new": expression})
    assert computed.column("new").to_pylist() == COMPUTED[expression][: table.num_rows]
    assert computed.drop_columns(["new"]).equals(table)


def test_columns_are_computed_from_those_before_the_step() -> None:
    computed = run(addColumns={"a": "a + 1", "c": "a * 10", "d": "b + path"})
    assert computed.column_names == ["a", "b", "path", "c", "d"]
    assert computed.select(["a", "c"]).to_pydict() == {"a": [2, 3], "c": [10, 20]}


def test_type_that_an_expression_cannot_use_fails_the_rows() -> None:
    """Other rows may have other types, for example those of other JSON documents."""
    for expression, reason in {
        "b + 1": "step 'step': column 'c' cannot be computed: b + 1: ",
        "a if a > 1 else b": "int64 and string have no common type",
    }.items():
        result = load_step(
            Step.model_validate({"name": "step", "addColumns": {"c": expression}}), Device()
        )(TABLE)
        assert isinstance(result, TransformResult)
        assert (result.table.num_rows, len(result.parents), set(result.failed)) == (0, 0, {0, 1})
        assert all(reason in str(error) for error in result.failed.values())


def test_value_that_cannot_be_converted_fails_its_row() -> None:
    for expression in ("int(b)", "float(b)"):
        with pytest.raises(pa.ArrowInvalid, match="Failed to parse string"):
            run(addColumns={"c": expression})
    with pytest.raises(pa.ArrowInvalid, match=r"not in range|truncated|out of"):
        run(pa.table({"a": [1e300]}), addColumns={"c": "int(a)"})


def test_missing_column_fails_the_job(messages: Messages) -> None:
    steps: list[dict[str, object]] = [{"selectColumns": ["a", "c"]}, {"dropColumns": ["c"]}]
    for step in steps:
        with messages.raises(JobFailure):
            run(**step)
    label = {"column": "class", "index": 4}
    with messages.raises(JobFailure):
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
