"""Model steps in a stage: input columns, output columns, and rows that do not fit."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline.arrow import to_batch
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.row_batch import RowBatch
from plugins.messages import Messages
from support.outputs.batches import Run, errors_of, good, outcomes
from support.outputs.stages import in_one_stage
from support.servers.scripted_http import answering, served

LONG = "x " * 100


def step(name: str = "embed", **model: Any) -> dict[str, Any]:
    text = {"runtime": "transformers", "inputs": {"text": "text"}, "output": "embedding"}
    return {"name": name, "model": {**text, "task": "feature-extraction", **model}}


def torch_step(**model: Any) -> dict[str, Any]:
    return step("score", **{"runtime": "torch", "task": None, **model})


def runner(*steps: dict[str, Any]) -> Run:
    """Return the runner of a stage of these steps, as it runs in an actor."""
    for one in steps:
        if "model" in one and one["model"]["task"] is None:
            del one["model"]["task"]
    return in_one_stage(*steps)


def batch(**columns: Any) -> RowBatch:
    return good(0, 0, pa.table(columns))


def test_output_is_added_or_replaces_its_input(bert: str) -> None:
    result = runner(step(source=bert))(batch(text=["a", "b", "c"], n=[1, 2, 3]))
    assert result.table.column_names == ["text", "n", "embedding"]
    assert to_batch(result.table)["embedding"].shape == (3, 32)
    assert outcomes(result) == dict.fromkeys(range(3), "good")
    replaced = runner(step(source=bert, output="text"))(batch(text=["a", "b"], n=[1, 2]))
    assert replaced.table.column_names == ["text", "n"]
    assert to_batch(replaced.table)["text"].shape == (2, 32)
    drop = {"name": "slim", "dropColumns": ["text"]}
    dropped = runner(step(source=bert), drop)(batch(text=["a"], n=[1]))
    assert dropped.table.column_names == ["n", "embedding"]


def test_invalid_text_fails_its_row_only(bert: str) -> None:
    result = runner(step(source=bert, tooLong="fail"))(batch(text=["a", LONG, "c", "d"]))
    assert outcomes(result) == {0: "good", 1: "failed", 2: "good", 3: "good"}
    assert errors_of(result)[1].startswith("TextTooLong: the text has 102 tokens")
    assert result.table.column("text").to_pylist() == ["a", "c", "d"]


def test_columns_become_module_arguments() -> None:
    a, b = [[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]
    for inputs, left, right in (
        ({"left": "b", "right": "a"}, b, a),
        ({"left": "a", "right": "a"}, a, a),
    ):
        model = torch_step(factory="user_code:Two", inputs=inputs, output="product")
        product = to_batch(runner(model)(batch(a=a, b=b)).table)["product"]
        assert product.tolist() == (np.array(left) @ np.array(right).T).tolist(), inputs


def test_list_of_another_length_fails_its_row_only() -> None:
    model = torch_step(factory="user_code:Affine", factoryArgs={"features": 2}, inputs={"x": "a"},
                       output="y")  # fmt: skip
    lists = pa.array([[1.0, 2.0], [1.0], [3.0, 4.0]], pa.list_(pa.float32()))
    result = runner(model)(batch(a=lists))
    assert outcomes(result) == {0: "good", 1: "failed", 2: "good"}


def test_wrong_number_of_results_ends_the_job(messages: Messages) -> None:
    model = torch_step(factory="user_code:Shorter", inputs={"x": "a"}, output="y")
    with pytest.raises(JobFailure) as failure:
        runner(model)(batch(a=[1.0, 2.0, 3.0]))
    messages.check(failure.value.message)


def test_missing_input_column_ends_the_job(bert: str, messages: Messages) -> None:
    run = runner(step(source=bert, inputs={"text": "body"}))
    with messages.raises(JobFailure):
        run(batch(text=["a"]))


def test_load_error_is_raised_when_the_stage_is_made(messages: Messages) -> None:
    with pytest.raises(ModelLoad, match="model '/nowhere' not found"):
        runner(step(source="/nowhere"))
    broken = torch_step(factory="user_code:Fragile", inputs={"x": "a"}, output="y")
    with messages.raises(ModelLoad):
        runner(broken)


async def test_null_of_another_row_does_not_change_a_body() -> None:
    fields = {"task": None, "runtime": "http", "api": "json", "nullInput": "compute"}
    body = {"n": "{n}", "c": "{c}"}
    async with served(answering(200, {})) as server:
        inputs = {"n": "n", "c": "c"}
        run = runner(step(**fields, url=server.url, inputs=inputs, body=body))
        columns = {"n": [(1 << 53) + 1, None], "c": pa.array(["a", None]).dictionary_encode()}
        await asyncio.to_thread(run, batch(**columns))
    sent = sorted((request.body for request in server.requests), key=str)
    assert sent == [{"n": (1 << 53) + 1, "c": "a"}, {"n": None, "c": None}]
