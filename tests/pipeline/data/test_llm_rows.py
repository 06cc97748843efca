"""Rows in Ray Data's LLM processor: their requests; no row and no column is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ray.llm._internal.batch.stages.base import wrap_postprocess, wrap_preprocess

from batchinference.pipeline import arrow
from batchinference.pipeline.arrow import to_batch, to_table
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.block_codec import decode, encode
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.execution.vllm_stage import _decode_results, _encode_requests
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.row_batch import RowBatch, merged
from batchinference.pipeline.runtimes.vllm_row_codec import (
    ADAPTER,
    CUT,
    ERROR,
    REQUEST,
    RESULT,
    ROW,
    opened,
    parameters_of,
    result_of,
)
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Stage
from batchinference.spec.models import VllmModel
from batchinference.spec.steps import Step
from support.documents.vllm_models import vllm
from support.models import tiny_transformers
from support.outputs.batches import (
    end,
    errors_of,
    failed,
    filtered,
    good,
    outcomes,
    plain,
    rows_of,
    shares_of,
)
from support.outputs.row_warnings import warnings_of

PARAMETERS = {"sampling_params": {"max_tokens": 3}}
TOLERANT = ErrorHandling(tolerant=True, input=Location("/none"))
Row = dict[str, Any]


def model(**fields: Any) -> VllmModel:
    return VllmModel.model_validate(vllm(**fields))


def rows(**columns: Any) -> RowBatch:
    return good(0, 0, to_table(columns))


def requests(spec: VllmModel, **columns: Any) -> list[Any]:
    """Return the request of each row, or its error."""
    sealed = _encode_requests("ask", spec, encode(rows(**columns)))
    pairs = zip(sealed[REQUEST].to_pylist(), sealed[ERROR].to_pylist(), strict=True)
    return [error or json.loads(request) for request, error in pairs]


def well(_: Row) -> Row:
    return {"generated_text": "well"}


def through_ray(
    sealed: pa.Table, answer: Callable[[Row], Row] = well, task: str = "generate"
) -> pa.Table:
    """Pass rows through Ray's preprocess and postprocess wrappers, with `answer` as the stage."""
    before = wrap_preprocess(lambda row: opened(PARAMETERS, row), "__data")
    after = wrap_postprocess(
        lambda row: {ROW: row[ROW], RESULT: result_of(task)(row), CUT: row[CUT]}, "__data", True
    )
    results: list[Row] = []
    for row in sealed.to_pylist():
        data = before(row)
        assert data["__data"]["sampling_params"] == PARAMETERS["sampling_params"]
        if not data["__data"][ERROR]:
            data["__data"] |= answer(data["__data"])
        results.append(after(data))
    known = (ROW, RESULT, ERROR, CUT)
    names = dict.fromkeys(name for row in results for name in known if name in row)
    return arrow.to_table({name: [row.get(name) for row in results] for name in names})


def asked(
    batch: RowBatch,
    answer: Callable[[Row], Row] = well,
    spec: VllmModel | None = None,
    errors: ErrorHandling = TOLERANT,
) -> RowBatch:
    """Return the batch after a step with a model that gives these answers."""
    spec = spec or model()
    step = Step.model_validate({"name": "ask", "model": spec, "resources": {"gpu": 1}})
    sealed = through_ray(_encode_requests("ask", spec, encode(batch)), answer, spec.task)
    return merged(map(decode, _decode_results(Stage("ask", (step,)), spec, errors)(sealed)))


def test_requests_have_messages_or_a_prompt() -> None:
    spec = model(system="Hm.", prompt="Say {question}!")
    assert requests(spec, text=["a", "b"])[1] == {
        "messages": [{"role": "system", "content": "Hm."}, {"role": "user", "content": "Say b!"}]
    }
    for fields in ({"chat": False}, {"task": "embed"}):
        assert requests(model(prompt="Q: {question}", **fields), text=["a"]) == [{"prompt": "Q: a"}]
        (empty,) = requests(model(emptyInput="compute", **fields), text=[""])
        assert "the prompt is empty" in empty


def test_schema_is_the_same_text_for_all_rows() -> None:
    schema = {"properties": {"a": {"enum": [1, "b", None]}}, "required": []}
    sampling = {"max_tokens": 3, "structured_outputs": {"json": schema}}
    made = parameters_of(model(sampling=sampling))["sampling_params"]
    assert json.loads(made["structured_outputs"]["json"]) == schema
    assert made["max_tokens"] == 3
    choice = {"structured_outputs": {"choice": ["a"]}}
    assert parameters_of(model(sampling=choice)) == {"sampling_params": choice}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return the folder of a chat model with a token for each character."""
    tiny_transformers.write("chat_model", tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("chat", [True, False])
def test_long_row_is_cut_before_the_engine(folder: str, chat: bool) -> None:
    numbers = "".join(str(number % 10) for number in range(90))
    fields: dict[str, Any] = {"prompt": "Say {question}!", "chat": chat, "tooLong": "truncateLeft"}
    engine = {"max_model_len": 60}
    spec = model(source=folder, engine=engine, sampling={"max_tokens": 10}, **fields)
    # <bos> twice, as the stage for tokens adds it to that of the template
    room = 50 - len("Say !") - (2 + len("[user][assistant]") if chat else 1)
    kept = f"Say {numbers[-room:]}!"
    expected = {"messages": [{"role": "user", "content": kept}]} if chat else {"prompt": kept}
    assert requests(spec, text=["a", numbers])[1] == expected
    done = asked(rows(text=["a", numbers]), spec=spec)
    assert warnings_of(done) == [(1, "TextCut", 90 - room)]
    inputs = {"question": "text", "style": "style"}
    adapted = model(source=folder, engine=engine, inputs=inputs, adapter="style", loraPath="/a",
                    chat=chat, tooLong="truncate", sampling={"max_tokens": 10})  # fmt: skip
    (request,) = requests(adapted, text=[numbers], style=["x" * 99])
    assert request[ADAPTER] == "x" * 99
    whole = model(source=folder, engine=engine, **{**fields, "tooLong": "fail"})
    assert str(requests(whole, text=[numbers])[0]).count(numbers) == 1


def test_request_names_the_adapter() -> None:
    inputs = {"question": "text", "style": "style"}
    spec = model(inputs=inputs, adapter="style", loraPath="/adapters")
    asked = requests(spec, text=["a", "b"], style=pa.array(["poem", None]))
    assert [request[ADAPTER] for request in asked] == ["poem", None]


def test_null_of_another_row_does_not_change_a_request() -> None:
    spec = model(
        inputs={"question": "text", "age": "age"}, prompt="{question} is {age}", chat=False
    )
    texts = ["Ann", "Bob", "Cy"]
    ages = pa.array([42, (1 << 53) + 1, None], pa.int64())
    asked = requests(spec, text=texts, age=ages)
    assert asked[:2] == [{"prompt": "Ann is 42"}, {"prompt": "Bob is 9007199254740993"}]
    adapted = model(inputs={"question": "text", "a": "a"}, adapter="a", loraPath="/adapters")
    styles = pa.array(["poem", None, "ode"]).dictionary_encode()
    asked = requests(adapted, text=texts, a=styles)
    assert [request[ADAPTER] for request in asked] == ["poem", None, "ode"]


def test_answer_to_a_null_or_empty_input_is_null() -> None:
    done = asked(rows(text=pa.array(["a", None, " "])))
    answers = [(0, "a", "well"), (1, None, None), (2, " ", None)]
    assert rows_of(done) == [(row, {"text": t, "answer": a}) for row, t, a in answers]
    assert warnings_of(done) == [(1, "NullInput", 0), (2, "EmptyInput", 0)]
    nulls = asked(rows(text=pa.array([None], pa.string())))
    assert rows_of(nulls) == [(0, {"text": None, "answer": None})]


def test_row_with_null_input_fails_alone_if_wanted() -> None:
    done = asked(rows(text=pa.array(["a", None])), spec=model(nullInput="fail"))
    assert "question is null" in errors_of(done)[1]
    assert rows_of(done) == [(0, {"text": "a", "answer": "well"})]


def test_rows_keep_their_columns_and_types() -> None:
    batch = rows(
        text=["a", "b"],
        small=np.array([1, 2], dtype=np.int8),
        pixels=np.zeros((2, 2, 2, 3), dtype=np.uint8),
        ragged=np.array([np.zeros((1, 2)), np.zeros((3, 1))], dtype=object),
        moment=np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[s]"),
    )
    done = asked(batch).table
    assert done.drop_columns("answer").equals(batch.table)
    assert done["answer"].to_pylist() == ["well", "well"]


def test_embeddings_are_float32_vectors() -> None:
    def embedded(row: Row) -> Row:
        return {"embeddings": np.array([len(row["prompt"]), 0.5], dtype=np.float16)}

    spec = model(task="embed", sampling={})
    vectors = to_table({"answer": np.zeros((2, 2), dtype=np.float32)})
    for texts in (["a", "bcd"], ["a", None, "bcd"]):
        done = asked(rows(text=pa.array(texts)), embedded, spec).table
        vectors_ = [vector for vector in to_batch(done)["answer"] if vector is not None]
        assert np.stack(vectors_).tolist() == [[1, 0.5], [3, 0.5]]
        assert done.schema.field("answer").type == vectors.schema.field("answer").type


def test_provenance_passes_through() -> None:
    notes = RowBatch(notes=(("before", "note"),))
    others = merged([filtered(0, 7, 8), failed(0, 9), end(0, 10), notes])
    done = asked(merged([rows(text=["a"]), others]))
    assert rows_of(done) == [(0, {"text": "a", "answer": "well"})]
    expected = {0: "good", 7: "filtered", 8: "filtered", 9: "failed"}
    assert outcomes(done) == expected
    assert (done.ends, done.notes) == (others.ends, others.notes)
    assert plain(asked(others)) == plain(others)


def test_rows_without_an_answer_keep_their_shares() -> None:
    table = to_table({"text": ["a", "b"]})
    batch = replace(good(0, 4, table), ids=np.array([4, 4]), source=np.array([4]))

    def refusing(row: Row) -> Row:
        content = row["messages"][0]["content"]
        return {ERROR: "ValueError: too long"} if content == "b" else well(row)

    for shares in (None, np.array([5])):
        done = asked(replace(batch, shares=shares), refusing)
        assert outcomes(done) == {4: "good, failed"}
        assert shares_of(done) == (None if shares is None else {4: 5})


def test_failed_row_ends_a_job_without_tolerance(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    snapshot = Location(str(tmp_path / "input.parquet"))
    snapshot.write(snapshot_input([str(tmp_path / "a.txt")], []).serialized())
    message = "step 'ask' failed on row 1 of .*a.txt: .*question is null"
    with pytest.raises(JobFailure, match=message):
        asked(
            rows(text=pa.array(["a", None])),
            spec=model(nullInput="fail"),
            errors=ErrorHandling(False, snapshot),
        )
