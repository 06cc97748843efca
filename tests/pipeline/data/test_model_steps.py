"""Model steps in a stage: input and output columns, and rows with null, empty or unfit values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from torchvision import models

from batchinference.pipeline.arrow import to_batch, to_column
from batchinference.pipeline.declared_types import arrow_type
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.execution.step_runner import ErrorHandling, SegmentRunner
from batchinference.pipeline.non_finite_counts import non_finite_values
from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.missing_inputs import missing_inputs
from batchinference.pipeline.steps.model import ModelTransform
from batchinference.pipeline.steps.transform import as_result
from batchinference.plan.stages import stages_of
from plugins.messages import Messages
from support.documents.parsed import steps_of
from support.models.replicas import model_of
from support.models.run_transformers import photographs
from support.outputs.batches import Run, as_one_batch, errors_of, good, outcomes, rows_of
from support.outputs.row_warnings import warnings_of
from support.outputs.stages import TOLERANT, in_one_stage
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
    assert errors_of(result)[1].startswith("the text has 102 tokens")
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


def test_list_of_another_length_or_with_a_null_fails_its_row_only() -> None:
    model = {"factory": "user_code:Affine", "factoryArgs": {"features": 2}, "output": "y"}
    lists = [[1, 2], [1], [3, 4], [None, 1]]
    for kind, rows in (
        (pa.list_(pa.float32()), lists),
        (pa.large_list(pa.list_(pa.float32())), [[row] for row in lists]),
        (pa.list_(pa.list_(pa.float32(), 2)), [[lists[at]] for at in (0, 3, 2, 3)]),
    ):
        run = runner(torch_step(**model, inputs={"x": "a"}))
        result = run(batch(a=pa.chunked_array([rows[:3], rows[3:]], kind)))
        assert outcomes(result) == {0: "good", 1: "failed", 2: "good", 3: "failed"}, kind


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


PLAIN = pa.schema([("out", pa.string()), ("score", pa.float32())])


def results(values: list[Any], runtime: str, name: str, **fields: Any) -> pa.Table:
    """Return the output of a model for a column of values, without its input."""
    model = model_of(runtime, (name,), **fields)
    table = pa.table({name: to_column(values)})
    made = as_result(ModelTransform("step", model, Device())(table)).table.drop_columns([name])
    assert made.schema.field("out").type == arrow_type(model.output_type or "")
    return made


@pytest.fixture
def squeezenet(tmp_path: Path) -> str:
    torch.manual_seed(0)
    path = tmp_path / "model.pt"
    torch.save(models.get_model("squeezenet1_1", weights=None, num_classes=3).state_dict(), path)
    return str(path)


@pytest.fixture(params=["classifier", "zero-shot", "torchvision"])
def case(
    request: pytest.FixtureRequest, tiny: Callable[[str], str], squeezenet: str
) -> tuple[list[Any], dict[str, Any]]:
    """Return values, and the fields of a model that reads them."""
    texts = ["one", None, "three"]
    cases: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "classifier": (texts, {"task": "text-classification", "source": "sentiment_model"}),
        "zero-shot": (
            texts,
            {
                **{"task": "zero-shot-classification", "source": "entailment_model"},
                "candidateLabels": ["left", "right"],
            },
        ),
        "torchvision": (
            photographs((64, 64), (64, 64), (64, 64)),
            {"arch": "squeezenet1_1", "source": squeezenet, "labels": ["a", "b", "c"]},
        ),
    }
    values, fields = cases[request.param]
    if "task" not in fields:
        return values, {"runtime": "torchvision", "name": "image", **fields}
    fields["source"] = tiny(fields["source"])
    return values, {"runtime": "transformers", "name": "text", **fields}


def test_label_and_score_are_those_of_the_struct(case: tuple[list[Any], dict[str, Any]]) -> None:
    values, fields = case
    plain = results(values, scoreOutput="score", **fields)
    struct = results(values, **fields)["out"].to_pylist()
    assert plain.schema == PLAIN
    assert plain.to_pylist() == [
        {"out": one and one["label"], "score": one and one["score"]} for one in struct
    ]


def ran(
    *batches: dict[str, Any], errors: ErrorHandling = TOLERANT, after: Any = (), **fields: Any
) -> list[RowBatch]:
    """Return the results of a model for successive batches."""
    text = {"runtime": "transformers", "task": "text-classification", "inputs": {"text": "text"}}
    step = {"name": "classify", "model": {**text, "output": "label", **fields}}
    stages = stages_of(steps_of(step, *after))
    runs = [as_one_batch(SegmentRunner([stage], errors)) for stage in stages]
    given = (good(0, 0, pa.table(columns)) for columns in batches)
    return [reduce(lambda batch, run: run(batch), runs, batch) for batch in given]


TEXTS = ["a", None, "", " \u00a0\n\u3000", "b"]


def labels(batch: RowBatch) -> list[Any]:
    return [row["label"] and row["label"]["label"] for _, row in rows_of(batch)]


def test_output_of_null_and_empty_texts_is_null(bert: str) -> None:
    (result,) = ran({"text": TEXTS}, source=bert)
    assert outcomes(result) == dict.fromkeys(range(5), "good")
    assert [label is None for label in labels(result)] == [False, True, True, True, False]
    expected = [(1, "NullInput", 0), (2, "EmptyInput", 0), (3, "EmptyInput", 0)]
    assert warnings_of(result) == expected
    (alone,) = ran({"text": ["a", "b"]}, source=bert)
    assert [label for label in labels(result) if label] == labels(alone)


def test_null_and_empty_texts_fail_if_wanted(bert: str) -> None:
    (result,) = ran({"text": TEXTS}, source=bert, nullInput="fail", emptyInput="fail")
    assert [row for row, outcome in outcomes(result).items() if outcome == "failed"] == [1, 2, 3]
    assert "nullInput" in errors_of(result)[1]
    assert "emptyInput" in errors_of(result)[2]
    assert warnings_of(result) == []


def test_model_computes_empty_texts_if_wanted(bert: str) -> None:
    (result,) = ran({"text": TEXTS}, source=bert, emptyInput="compute")
    assert [label is None for label in labels(result)] == [False, True, False, False, False]


def test_batch_of_nulls_has_the_type_of_earlier_batches(bert: str) -> None:
    nulls = {"text": pa.nulls(2, pa.string())}
    first, some, last = ran(nulls, {"text": ["a"]}, nulls, source=bert)
    assert first.table.schema.field("label").type == pa.null()
    assert last.table.schema.field("label").type == some.table.schema.field("label").type
    assert labels(last) == labels(first) == [None, None]


def test_null_embeddings_stay_null_in_later_steps(bert: str) -> None:
    after = [{"name": "some", "filter": "text is None or text != 'b'"}]
    fields = {"task": "feature-extraction", "source": bert, "after": after}
    (result,) = ran({"text": TEXTS}, **fields)
    assert [row["label"] is None for _, row in rows_of(result)] == [False, True, True, True]


def test_rows_around_failed_rows_keep_their_warnings(bert: str) -> None:
    values = pa.array(["a", None, "x " * 50, "", "b"]).dictionary_encode()
    fields = {"tooLong": "fail", "options": {"max_length": 4}}
    (result,) = ran({"text": values}, source=bert, **fields)
    assert outcomes(result) == {0: "good", 1: "good", 2: "failed", 3: "good", 4: "good"}
    assert warnings_of(result) == [(1, "NullInput", 0), (3, "EmptyInput", 0)]


TENSORS = [np.ones((2, 2, 3), np.uint8), np.ones((0, 2, 3), np.uint8)]
VALUES: list[tuple[Any, list[str | None]]] = [
    (pa.array(["a", None, "  "]), [None, "NullInput", "EmptyInput"]),
    (pa.array(["a", ""], pa.large_string()), [None, "EmptyInput"]),
    (pa.array([b"a", b"", None]), [None, "EmptyInput", "NullInput"]),
    (pa.array([[1.0], [], None]), [None, "EmptyInput", "NullInput"]),
    (pa.array([[{"role": "user"}], []]), [None, "EmptyInput"]),
    (pa.array([1.5, None, float("nan")]), [None, "NullInput", None]),
    (pa.nulls(2), ["NullInput", "NullInput"]),
    (to_column(TENSORS), [None, "EmptyInput"]),
    (to_column(np.ones((2, 3))), [None, None]),
]


@pytest.mark.parametrize(("values", "expected"), VALUES)
def test_values_that_are_missing(values: Any, expected: list[str | None]) -> None:
    model = model_of("torch", ("x",), factory="user_code:Affine")
    skipped = missing_inputs(model, pa.table({"x": values})).skipped
    assert [skipped.get(row) for row in range(len(expected))] == expected


def test_row_with_several_inputs_is_missing_if_one_is_null_or_all_are_empty() -> None:
    model = model_of("http", ("a", "b"), api="chat", name="m", url="http://a", prompt="{a}: {b}")
    table = pa.table({"a": ["x", "", "", None], "b": ["", "", None, "y"]})
    assert missing_inputs(model, table).skipped == {
        1: "EmptyInput", 2: "NullInput", 3: "NullInput"
    }  # fmt: skip


def test_row_with_a_null_part_in_its_prompt_is_missing() -> None:
    fields = {"api": "chat", "name": "m", "url": "http://a", "prompt": "{a.b[0]}"}
    values = [{"b": ["x"]}, {"b": []}, {"b": None}, None]
    skipped = missing_inputs(model_of("http", ("a",), **fields), pa.table({"a": values})).skipped
    assert skipped == dict.fromkeys((1, 2, 3), "NullInput")


def test_numbers_do_not_make_a_row_complete() -> None:
    fields = {"task": "audio-classification", "source": "org/model", "emptyInput": "fail"}
    model = model_of("transformers", ("audio", "sampling_rate"), **fields)
    table = pa.table({"audio": [[0.5], []], "sampling_rate": [8000, 8000]})
    assert "empty in audio, and" in str(missing_inputs(model, table).failed[1])


def test_null_is_sent_to_a_json_endpoint_if_wanted() -> None:
    fields = {"api": "json", "url": "http://a", "body": {"a": "{a}"}}
    table = pa.table({"a": [None, 1]})
    assert missing_inputs(model_of("http", ("a",), **fields), table).skipped == {0: "NullInput"}
    sent = model_of("http", ("a",), **fields, nullInput="compute")
    assert missing_inputs(sent, table).skipped == {}


NAN, INF = float("nan"), float("inf")
COLUMNS: list[tuple[Any, dict[int, int]]] = [
    ([1.0, NAN, None, -INF], {1: 1, 3: 1}),
    ([[1.0, 2.0], None, [], [NAN, INF]], {3: 2}),
    (pa.array([[1.0, 2.0], None, [NAN, 1.0]], pa.list_(pa.float32(), 2)), {2: 1}),
    ([[{"label": "a", "score": 0.5}], [{"label": "b", "score": NAN}] * 2], {1: 2}),
    ([{"x": 1.0, "y": [[NAN]]}, {"x": INF, "y": [[]]}, None], {0: 1, 1: 1}),
    (np.array([[1, NAN], [1, 2]], np.float16), {0: 1}),
    ([np.ones((2, 2)), np.full((3, 2), NAN)], {1: 6}),
    (["a", None], {}),
    ([1, 2], {}),
    (pa.nulls(2), {}),
]


@pytest.mark.parametrize(("values", "expected"), COLUMNS)
def test_values_are_counted_by_row(values: Any, expected: dict[int, int]) -> None:
    plain = isinstance(values, list) and not isinstance(values[0], np.ndarray)
    table = pa.table({"a": pa.array(values) if plain else to_column(values)})
    assert non_finite_values(table) == expected
    moved = {row - 1: count for row, count in expected.items() if row}
    assert non_finite_values(table.slice(1)) == moved


@pytest.fixture
def broken(bert: str, tmp_path: Path) -> str:
    """Return the folder of a text model in which the embedding of the letter b is NaN."""
    transformers.AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    model = transformers.AutoModel.from_pretrained(bert)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[6] = NAN
    model.save_pretrained(tmp_path)
    return str(tmp_path)


def embedded(source: str, **fields: Any) -> RowBatch:
    return runner(step(source=source, **fields))(batch(text=["a", "b", None, "c"]))


@pytest.mark.parametrize("fields", [{}, {"normalize": True, "nonFinite": "keep"}])
def test_non_finite_embeddings_are_counted(broken: str, fields: dict[str, Any]) -> None:
    vectors = embedded(broken, **fields)
    assert outcomes(vectors) == dict.fromkeys(range(4), "good")
    assert warnings_of(vectors) == [(1, "NonFinite", 32), (2, "NullInput", 0)]


@pytest.mark.parametrize("fields", [{"normalize": True}, {"nonFinite": "fail"}])
def test_non_finite_embeddings_fail_their_rows(broken: str, fields: dict[str, Any]) -> None:
    vectors = embedded(broken, **fields)
    assert outcomes(vectors) == {0: "good", 1: "failed", 2: "good", 3: "good"}
    assert warnings_of(vectors) == [(2, "NullInput", 0)]


def test_embeddings_of_an_engine_and_an_endpoint_must_be_finite() -> None:
    endpoint = {"url": "http://a", "name": "m"}
    for runtime, fields, expected in (
        ("vllm", {"source": "org/model", "task": "embed"}, True),
        ("vllm", {"source": "org/model"}, False),
        ("http", {"api": "embeddings", **endpoint}, True),
        ("http", {"api": "chat", **endpoint}, False),
        ("torch", {"factory": "user_code:Affine"}, False),
    ):
        assert model_of(runtime, ("text",), **fields).needs_finite is expected, (runtime, fields)
