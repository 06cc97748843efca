"""Model steps in a stage: input columns, output columns, and rows that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import concat, to_batch
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner
from batchinference.pipeline.storage.location import Location
from batchinference.plan.stages import stages_of
from batchinference.spec.steps import Step
from support.inputs.read_files import data_of, own_columns, read_files

TOLERANT = ErrorHandling(tolerant=True, input=Location("/nowhere/input.parquet"))


def step(name: str = "embed", **model: Any) -> dict[str, Any]:
    text = {"runtime": "transformers", "inputs": {"text": "text"}, "output": "embedding"}
    return {"name": name, "model": {**text, "task": "feature-extraction", **model}}


def torch_step(**model: Any) -> dict[str, Any]:
    return step("score", **{"runtime": "torch", "task": None, **model})


def runner(*steps: dict[str, Any]) -> StageRunner:
    """Return the runner of a stage of these steps, as it runs in an actor."""
    for one in steps:
        if "model" in one and one["model"]["task"] is None:
            del one["model"]["task"]
    (stage,) = stages_of([Step.model_validate(one) for one in steps])
    return StageRunner(stage, TOLERANT)


def table(**columns: Any) -> pa.Table:
    return row_ids.with_ids(pa.table(columns), 0, 0)


def states(result: pa.Table) -> dict[int, int]:
    return {row[row_ids.ID]: row[row_ids.STATE] for row in own_columns(result)}


def error_of(result: pa.Table, row: int) -> str:
    (error,) = [own[row_ids.ERROR] for own in own_columns(result) if own[row_ids.ID] == row]
    return str(error)


def test_output_is_added_or_replaces_its_input(bert: str) -> None:
    result = runner(step(source=bert))(table(text=["a", "b", "c"], n=[1, 2, 3]))
    assert row_ids.data_columns(result) == ["text", "n", "embedding"]
    assert to_batch(result)["embedding"].shape == (3, 32)
    assert states(result) == dict.fromkeys(range(3), row_ids.GOOD)
    replaced = runner(step(source=bert, output="text"))(table(text=["a", "b"], n=[1, 2]))
    assert row_ids.data_columns(replaced) == ["text", "n"]
    assert to_batch(replaced)["text"].shape == (2, 32)
    drop = {"name": "slim", "dropColumns": ["text"]}
    dropped = runner(step(source=bert), drop)(table(text=["a"], n=[1]))
    assert row_ids.data_columns(dropped) == ["n", "embedding"]


def test_classification_has_label_and_score(bert: str) -> None:
    model = step(source=bert, task="text-classification", output="class")
    (row,) = data_of([runner(model)(table(text=["a"]))])
    assert set(row["class"]) == {"label", "score"}
    assert row["class"]["label"] in {"left", "middle", "right"}


def test_null_text_fails_its_row_only(bert: str) -> None:
    result = runner(step(source=bert))(table(text=["a", None, "c", "d"]))
    assert states(result) == {0: row_ids.GOOD, 1: row_ids.FAILED, 2: row_ids.GOOD, 3: row_ids.GOOD}
    assert error_of(result, 1) == "TypeError: expected text, got NoneType"
    assert [row["text"] for row in data_of([result])] == ["a", "c", "d"]


def test_results_keep_their_rows_when_others_fail(bert: str) -> None:
    texts = ["one", None, "two", "three", None, "four"]
    run = runner(step(source=bert))
    some = run(table(text=texts))
    alone = {text: to_batch(run(table(text=[text])))["embedding"][0] for text in texts if text}
    good, _ = row_ids.split(some)
    found = zip(good["text"].to_pylist(), to_batch(good)["embedding"], strict=True)
    for text, embedding in found:
        assert np.abs(embedding - alone[text]).max() < 1e-5


def test_images_reach_the_model(vit: str, tmp_path: Path) -> None:
    for number, side in enumerate((20, 40, 30)):
        Image.new("RGB", (side, 32), (number * 80, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "1a.png").write_text("no image")
    read = concat(read_files("images", tmp_path).tables)
    model = step(source=vit, task="image-classification", inputs={"image": "image"}, output="class")
    result = runner(model, {"name": "slim", "dropColumns": ["image"]})(read)
    assert len(data_of([result])) == 3
    assert sorted(row[row_ids.STATE] for row in own_columns(result)) == [
        *([row_ids.GOOD] * 3), row_ids.FAILED
    ]  # fmt: skip


def test_columns_become_module_arguments() -> None:
    a, b = [[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]
    for inputs, left, right in (
        ({"left": "b", "right": "a"}, b, a),
        ({"left": "a", "right": "a"}, a, a),
    ):
        model = torch_step(factory="user_code:Two", inputs=inputs, output="product")
        product = to_batch(runner(model)(table(a=a, b=b)))["product"]
        assert product.tolist() == (np.array(left) @ np.array(right).T).tolist(), inputs


def test_list_of_another_length_fails_its_row_only() -> None:
    model = torch_step(factory="user_code:Affine", factoryArgs={"features": 2}, inputs={"x": "a"},
                       output="y")  # fmt: skip
    lists = pa.array([[1.0, 2.0], [1.0], [3.0, 4.0]], pa.list_(pa.float32()))
    result = runner(model)(table(a=lists))
    assert states(result) == {0: row_ids.GOOD, 1: row_ids.FAILED, 2: row_ids.GOOD}


def test_wrong_number_of_results_ends_the_job() -> None:
    model = torch_step(factory="user_code:Shorter", inputs={"x": "a"}, output="y")
    with pytest.raises(JobFailure) as failure:
        runner(model)(table(a=[1.0, 2.0, 3.0]))
    assert failure.value.message == ("step 'score': the model returned 2 results for a batch of 3")


def test_missing_input_column_ends_the_job(bert: str) -> None:
    run = runner(step(source=bert, inputs={"text": "body"}))
    with pytest.raises(JobFailure, match="step 'embed' reads column 'body', but the columns here"):
        run(table(text=["a"]))


def test_load_error_is_raised_when_the_stage_is_made() -> None:
    with pytest.raises(ModelLoad, match="model '/nowhere' not found"):
        runner(step(source="/nowhere"))
    broken = torch_step(factory="user_code:Fragile", inputs={"x": "a"}, output="y")
    with pytest.raises(ModelLoad, match="step 'score': the model cannot be loaded: RuntimeError"):
        runner(broken)
