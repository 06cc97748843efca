"""Python steps that process single rows, and classes with a method predict_batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from batchinference.pipeline.arrow import to_batch, to_column
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.steps import Transform, TransformResult
from batchinference.pipeline.steps.user_code import python_transform
from batchinference.spec.python_step import PythonStep
from plugins.messages import Messages

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


def test_invalid_row_ends_the_job(own: Make) -> None:
    for method, returned, message in (
        ("map", [{"a": 1}], "must return a row as a dict, got list"),
        ("map", {}, "must return a row as a dict, got an empty dict"),
        ("map", {"_bi_id": 1}, "returned a column '_bi_id'"),
        ("flatMap", {"a": 1}, "must return a list of rows, got dict"),
        ("flatMap", None, "must return a list of rows, got NoneType"),
        ("flatMap", [1], "must return a row as a dict, got int"),
    ):
        with pytest.raises(JobFailure, match=message):
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


def test_predict_batch_gets_other_values_unchanged(own: Make) -> None:
    class Lengths:
        def predict_batch(self, texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

    step = own(Lengths, predictBatch={"input": "text", "output": "length"})
    assert column(step, "length") == [1, 3, 0]


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
