"""Python steps that process single rows, classes with a method predict_batch, and results whose
types do not fit their column."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from batchinference.pipeline.arrow import concat, to_batch, to_column
from batchinference.pipeline.errors import JobFailure, ModelLoad, describe
from batchinference.pipeline.execution.step_runner import SegmentRunner
from batchinference.pipeline.steps.transform import Transform, TransformResult
from batchinference.pipeline.steps.user_code import python_transform
from batchinference.plan import Stage
from batchinference.spec.python_step import PythonStep
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.models.run_transformers import objects
from support.outputs.batches import as_one_batch, good, outcomes
from support.outputs.stages import TOLERANT

TABLE = pa.table({"n": [1, 2, 3], "text": ["a", "b c", ""]})
Make = Callable[..., Transform]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes a step of a test's function or class."""
    import user_code

    def make(target: Any, **fields: Any) -> Transform:
        name = "Given" if isinstance(target, type) else "given"
        monkeypatch.setattr(user_code, name, target, raising=False)
        step = PythonStep.model_validate({"callable": f"user_code:{name}", **fields})
        return python_transform("own", step)

    return make


def changed(step: Transform, table: pa.Table = TABLE) -> TransformResult:
    result = step(table)
    assert isinstance(result, TransformResult)
    return result


def column(step: Transform, name: str, table: pa.Table = TABLE) -> list[Any]:
    """Return a column of the result of a step that keeps all rows."""
    result = step(table)
    assert isinstance(result, pa.Table)
    return list(result.column(name).to_pylist())


def test_map_returns_one_row(own: Make) -> None:
    step = own(lambda row, by: {**row, "n": row["n"] * by}, method="map", callArgs={"by": 2})
    result = changed(step)
    assert result.table.to_pydict() == {"n": [2, 4, 6], "text": ["a", "b c", ""]}
    assert result.parents.tolist() == [0, 1, 2]


def test_flat_map_returns_any_number_of_rows(own: Make) -> None:
    def words(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"n": row["n"], "word": word} for word in row["text"].split()]

    result = changed(own(words, method="flatMap"))
    assert result.table.to_pydict() == {"n": [1, 2, 2], "word": ["a", "b", "c"]}
    assert result.parents.tolist() == [0, 1, 1]
    none = changed(own(lambda row: [], method="flatMap"))
    assert (none.table.num_rows, none.parents.tolist()) == (0, [])


def test_exception_fails_its_row_without_a_retry(own: Make) -> None:
    seen = []

    def fragile(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row["n"])
        if row["n"] == 2:
            raise ValueError("two")
        return row

    result = changed(own(fragile, method="map"))
    assert result.table.column("n").to_pylist() == [1, 3]
    assert {row: str(error) for row, error in result.failed.items()} == {1: "two"}
    assert seen == [1, 2, 3]


def test_connection_error_is_raised(own: Make) -> None:
    def away(row: dict[str, Any]) -> dict[str, Any]:
        raise ConnectionError("no route")

    with pytest.raises(ConnectionError):
        own(away, method="map")(TABLE)


def test_tensors_are_arrays_in_and_out(own: Make) -> None:
    images = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)

    def turn(row: dict[str, Any]) -> dict[str, Any]:
        assert row["image"].shape == (2, 2, 3)
        return {"image": row["image"][::-1]}

    result = changed(own(turn, method="map"), pa.table({"image": to_column(images)}))
    assert np.array_equal(to_batch(result.table)["image"], images[:, ::-1])


def test_wrong_result_fails_its_row(own: Make, messages: Messages) -> None:
    for method, usual, wrong in (
        ("map", {"a": 1}, [{"a": 1}]),
        ("map", {"a": 1}, {}),
        ("flatMap", [{"a": 1}], {"a": 1}),
        ("flatMap", [{"a": 1}], None),
        ("flatMap", [{"a": 1}], "a"),
        ("flatMap", [{"a": 1}], [{"a": 1}, 1]),
    ):

        def code(row: dict[str, Any], usual: Any = usual, wrong: Any = wrong) -> Any:
            return wrong if row["n"] == 2 else usual

        result = changed(own(code, method=method))
        assert (result.parents.tolist(), set(result.failed)) == ([0, 2], {1})
        messages.check(describe(result.failed[1]))


def test_reserved_column_ends_the_job(own: Make) -> None:
    for method, returned in (("map", {"_bi_id": 1}), ("flatMap", [{"_bi_id": 1}])):
        with pytest.raises(JobFailure, match="returned a column '_bi_id'"):
            own(lambda row, returned=returned: returned, method=method)(TABLE)


class Predictor:
    """A user's class that was written for a single machine."""

    def __init__(self, scale: Any = float, factor: int = 1) -> None:
        self.scale, self.factor = scale, factor
        self.seen: list[Any] = []

    def predict_batch(self, images: list[Image.Image]) -> torch.Tensor:
        sizes = [self.scale(image.size[0] * self.factor) for image in images]
        return torch.tensor(sizes, dtype=torch.bfloat16, requires_grad=True)


COLUMNS = {"input": "image", "output": "width"}


def test_predict_batch_gets_images_and_may_return_tensors(own: Make) -> None:
    for shape in ((2, 3), (2, 3, 3), (2, 3, 4)):  # L, RGB, RGBA
        images = to_column(np.zeros((4, *shape), dtype=np.uint8))
        table = pa.table({"n": range(4), "image": images})
        step = own(Predictor, predictBatch=COLUMNS, constructorArgs={"factor": 2})
        assert column(step, "width", table) == [6.0] * 4, shape
        result = step(table)
        assert isinstance(result, pa.Table)
        assert result.column_names == ["n", "image", "width"]


def test_constructor_refs_name_objects(own: Make) -> None:
    step = own(Predictor, predictBatch=COLUMNS, constructorRefs={"scale": "math:sqrt"})
    images = to_column(np.zeros((1, 2, 4, 3), dtype=np.uint8))
    assert column(step, "width", pa.table({"image": images})) == [2.0]


def test_predict_batch_needs_a_result_per_value(own: Make) -> None:
    class Short:
        def predict_batch(self, values: list[Any]) -> list[int]:
            return [1]

    with pytest.raises(JobFailure, match="returned 1 result for 3 values"):
        own(Short, predictBatch={"input": "n", "output": "out"})(TABLE)


def test_class_without_predict_batch_is_rejected(own: Make, messages: Messages) -> None:
    with messages.raises(ModelLoad):
        own(type("Given", (), {}), predictBatch=COLUMNS)
    with messages.raises(ModelLoad):
        own(Predictor)


Returns = Callable[[Any], Transform]
KINDS = ["map", "flatMap", "mapBatches", "mapBatches of arrays", "predictBatch"]


def step_of(kind: str, values: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> PythonStep:
    """Return a step that writes the value of each number in column `n` into column `v`."""
    import user_code

    class Predictor:
        def predict_batch(self, numbers: list[Any]) -> list[Any]:
            return [values[int(number)] for number in numbers]

    def batches(batch: dict[str, Any]) -> dict[str, Any]:
        result: Any = [values[int(number)] for number in batch["n"]]
        return {**batch, "v": objects(result) if kind == "mapBatches of arrays" else result}

    targets: dict[str, tuple[Any, dict[str, Any]]] = {
        "map": (lambda row: {**row, "v": values[int(row["n"])]}, {"method": "map"}),
        "flatMap": (lambda row: [{**row, "v": values[int(row["n"])]}], {"method": "flatMap"}),
        "predictBatch": (Predictor, {"predictBatch": {"input": "n", "output": "v"}}),
    }
    target, fields = targets.get(kind, (batches, {}))
    name = "Given" if kind == "predictBatch" else "given"
    monkeypatch.setattr(user_code, name, target, raising=False)
    return PythonStep.model_validate({"callable": f"user_code:{name}", **fields})


@pytest.fixture(params=KINDS)
def returns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Returns:
    """Return a function that makes a step with these values for the numbers from 0."""
    return lambda values: python_transform(
        "own", step_of(request.param, dict(enumerate(values)), monkeypatch)
    )


def numbers(first: int, after: int) -> pa.Table:
    return pa.table({"n": range(first, after)})


def outcome(changed: pa.Table | TransformResult) -> tuple[list[Any], dict[int, str]]:
    """Return the values of the column, and the error of each failed row."""
    if isinstance(changed, pa.Table):
        return changed.column("v").to_pylist(), {}
    kept = changed.table.column("v").to_pylist() if changed.table.num_rows else []
    assert changed.parents.tolist() == sorted(set(changed.parents.tolist()) - set(changed.failed))
    return kept, {row: str(error) for row, error in changed.failed.items()}


def test_value_without_an_arrow_type_fails_its_row(returns: Returns, messages: Messages) -> None:
    kept, failed = outcome(returns(["a", "x\ud800", "b"])(numbers(0, 3)))
    assert kept == ["a", "b"]
    assert list(failed) == [1]
    messages.check(failed[1])


BIG = (1 << 53) + 1
NOON = datetime.fromisoformat("2024-01-01T12:00:00")
DAY = NOON.date()
NOON_UTC = NOON.replace(tzinfo=UTC)
TYPES: list[tuple[list[Any], list[Any], dict[int, str]]] = [
    ([1, 2, "x", None], [1, 2, None], {2: "int64, and this row has string"}),
    (["x", 1, "y"], ["x", "y"], {1: "string, and this row has int64"}),
    ([1, "x"], [1], {1: "int64, and this row has string"}),  # in a tie, the first type wins
    ([1, "x", 2.5], [1.0, 2.5], {1: "int64, and this row has string"}),  # widened
    (
        *([None, {"a": 1}, {"a": "x"}, {"a": 2}], [None, {"a": 1}, {"a": 2}]),
        {2: "struct<a: int64>, and this row has struct<a: string>"},
    ),
    ([0.5, BIG, 1], [0.5, 1.0], {1: f"double, which cannot hold {BIG}"}),
    ([BIG, [0.5], BIG], [BIG, BIG], {1: "int64, and this row has list<item: double>"}),
    ([DAY, NOON, DAY], [DAY, DAY], {1: "date32[day], and this row has timestamp[us]"}),
    ([NOON, DAY, NOON], [NOON, NOON], {1: "timestamp[us], and this row has date32[day]"}),
    ([NOON, NOON_UTC], [NOON], {1: "timestamp[us], and this row has timestamp[us, tz=UTC]"}),
    (["x", b"y", "z"], ["x", "z"], {1: "string, and this row has binary"}),
    (
        *([{"a": "x"}, {"a": b"y"}], [{"a": "x"}]),
        {1: "struct<a: string>, and this row has struct<a: binary>"},
    ),
    ([[1], [], 2, [3]], [[1], [], [3]], {2: "list<item: int64>, and this row has int64"}),
]
"""The values of a batch, the values that are kept, and the errors of the other rows."""


def test_majority_type_of_a_batch_wins(returns: Returns) -> None:
    for values, kept, failed in TYPES:
        errors = {row: f"column 'v' is {error}" for row, error in failed.items()}
        assert outcome(returns(values)(numbers(0, len(values)))) == (kept, errors)


def test_types_of_the_first_batch_apply_to_later_batches(returns: Returns) -> None:
    step = returns([None, None, 1, 2, "x", "y", "z", 3, 4.5, "w"])
    reason = "column 'v' is int64, and this row has string"
    assert outcome(step(numbers(0, 2))) == ([None, None], {})
    assert outcome(step(numbers(2, 4))) == ([1, 2], {})
    assert outcome(step(numbers(4, 6))) == ([], {0: reason, 1: reason})
    assert outcome(step(numbers(6, 9))) == ([3.0, 4.5], {0: reason})
    assert outcome(step(numbers(9, 10)))[1] == {0: reason.replace("int64", "double")}


def test_value_that_the_type_of_earlier_batches_cannot_hold_fails_its_row(returns: Returns) -> None:
    step = returns([0.5, 1, BIG])
    assert outcome(step(numbers(0, 1))) == ([0.5], {})
    kept, failed = outcome(step(numbers(1, 3)))
    assert (kept, list(failed)) == ([1.0], [1])


def test_large_integer_before_a_fraction_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    python = step_of("map", {0: BIG, 1: 0.5}, monkeypatch)
    stage = Stage("own", (Step(name="own", python=python, batchSize=1),))
    run = SegmentRunner([stage], TOLERANT)
    with pytest.raises(JobFailure, match=r"step 'own'.*column 'v'.*int64.*double"):
        as_one_batch(run)(good(0, 0, numbers(0, 2)))


def test_null_fits_tensors_and_text_does_not(returns: Returns) -> None:
    vectors = [np.ones(2), None, "x", np.zeros(2)]
    changed = returns(vectors)(numbers(0, 4))
    assert isinstance(changed, TransformResult)
    assert list(changed.failed) == [2]
    result = to_batch(changed.table.select(["v"]))["v"]
    assert [None if one is None else list(one) for one in result] == [[1, 1], None, [0, 0]]


def test_batch_without_a_fitting_row_fails_all(returns: Returns) -> None:
    kept, failed = outcome(returns([object(), object()])(numbers(0, 2)))
    assert (kept, list(failed)) == ([], [0, 1])


def test_row_with_one_mismatched_result_loses_all_results(monkeypatch: pytest.MonkeyPatch) -> None:
    import user_code

    def twice(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"v": 1, "w": b"a"}, {"v": "x" if row["n"] == 1 else 2, "w": b"\xff"[: row["n"]]}]

    monkeypatch.setattr(user_code, "given", twice, raising=False)
    step = PythonStep.model_validate({"callable": "user_code:given", "method": "flatMap"})
    changed = python_transform("own", step)(numbers(0, 3))
    assert isinstance(changed, TransformResult)
    assert changed.table.column("v").to_pylist() == [1, 2, 1, 2]
    assert changed.parents.tolist() == [0, 0, 2, 2]
    assert list(changed.failed) == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_succeeds_or_fails(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {number: "x\ud800" if number % 5 == 3 else number for number in range(20)}
    values[11] = "text"
    step = Step(name="own", python=step_of(kind, values, monkeypatch), batchSize=4)
    run = SegmentRunner([Stage("own", (step,))], TOLERANT)
    result = as_one_batch(run)(good(0, 0, numbers(0, 20)))
    expected = ["failed" if n % 5 == 3 or n == 11 else "good" for n in range(20)]
    assert outcomes(result) == dict(enumerate(expected))
    assert result.table.column("n").to_pylist() == result.ids.tolist()


def test_type_conflict_names_column_and_types() -> None:
    for one, other, kinds in (
        (pa.array([1]), pa.array(["x"]), "int64 in some rows and string in others"),
        (to_column(np.ones((1, 2))), pa.array(["x"]), r"dtype=double\) in some rows and string in"),
        (pa.array([[1]]), pa.array([["x"]]), "list<item: int64> in some rows and list<item: str"),
    ):
        tables = [pa.table({"n": [1], "v": one}), pa.table({"n": [2], "v": other})]
        with pytest.raises(JobFailure, match=f"column 'v' is .*{kinds}.*Give it one type"):
            concat(tables)
