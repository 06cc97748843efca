"""Rows in Ray Data's LLM processor: their requests; no row and no column is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ray.llm._internal.batch.stages.base import wrap_postprocess, wrap_preprocess

from batchinference.pipeline import arrow, row_ids
from batchinference.pipeline.arrow import concat, to_batch, to_table
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.runtimes.vllm.row_codec import (
    ADAPTER,
    ERROR,
    REQUEST,
    RESULT,
    ROW,
    EngineError,
    decode_rows,
    encode_rows,
    opened,
    result_of,
)
from batchinference.spec.models import VllmModel
from support.documents.vllm_models import vllm

PARAMETERS = {"sampling_params": {"max_tokens": 3}}
Row = dict[str, Any]


def model(**fields: Any) -> VllmModel:
    return VllmModel.model_validate(vllm(**fields))


def good(**columns: Any) -> pa.Table:
    return row_ids.with_ids(to_table(columns), 0, 0)


def requests(spec: VllmModel, **columns: Any) -> list[Any]:
    """Return the request of each row, or its error."""
    sealed = encode_rows("ask", spec, good(**columns))
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
        lambda row: {ROW: row[ROW], RESULT: result_of(task)(row)}, "__data", True
    )
    results: list[Row] = []
    for row in sealed.to_pylist():
        data = before(row)
        assert data["__data"]["sampling_params"] == PARAMETERS["sampling_params"]
        if not data["__data"][ERROR]:
            data["__data"] |= answer(data["__data"])
        results.append(after(data))
    names = dict.fromkeys(name for row in results for name in (ROW, RESULT, ERROR) if name in row)
    return arrow.to_table({name: [row.get(name) for row in results] for name in names})


def set_aside(row_id: int, share: int, error: Exception) -> pa.Table:
    return row_ids.failed_row(row_id, "ask", error, share=share)


def test_requests_have_messages_or_a_prompt() -> None:
    spec = model(system="Hm.", prompt="Say {question}!")
    assert requests(spec, text=["a", "b"])[1] == {
        "messages": [{"role": "system", "content": "Hm."}, {"role": "user", "content": "Say b!"}]
    }
    for fields in ({"chat": False}, {"task": "embed"}):
        assert requests(model(prompt="Q: {question}", **fields), text=["a"]) == [{"prompt": "Q: a"}]


def test_request_names_the_adapter() -> None:
    inputs = {"question": "text", "style": "style"}
    spec = model(inputs=inputs, adapter="style", loraPath="/adapters")
    asked = requests(spec, text=["a", "b"], style=pa.array(["poem", None]))
    assert [request[ADAPTER] for request in asked] == ["poem", None]


def test_row_with_null_input_fails_alone() -> None:
    table = good(text=pa.array(["a", None]))
    done = decode_rows(through_ray(encode_rows("ask", model(), table)), model(), set_aside)
    bad = done.filter(pa.compute.equal(done[row_ids.STATE], row_ids.FAILED)).to_pylist()
    assert [(row[row_ids.ID], row[row_ids.ERROR]) for row in bad] == [
        (1, "EngineError: ValueError: input 'question' is null")
    ]
    assert done["answer"].to_pylist() == ["well", None]


def test_rows_keep_their_columns_and_types() -> None:
    table = good(
        text=["a", "b"],
        small=np.array([1, 2], dtype=np.int8),
        pixels=np.zeros((2, 2, 2, 3), dtype=np.uint8),
        ragged=np.array([np.zeros((1, 2)), np.zeros((3, 1))], dtype=object),
        moment=np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[s]"),
    )
    done = decode_rows(through_ray(encode_rows("ask", model(), table)), model(), set_aside)
    assert done.drop_columns("answer").equals(table)
    assert done["answer"].to_pylist() == ["well", "well"]


def test_embeddings_are_float32_vectors() -> None:
    def embedded(row: Row) -> Row:
        return {"embeddings": np.array([len(row["prompt"]), 0.5], dtype=np.float16)}

    spec = model(task="embed", sampling={})
    plain = to_table({"answer": np.zeros((2, 2), dtype=np.float32)})
    for texts in (["a", "bcd"], ["a", None, "bcd"]):
        sealed = encode_rows("ask", spec, good(text=pa.array(texts)))
        done = decode_rows(through_ray(sealed, embedded, "embed"), spec, set_aside)
        answers, _ = row_ids.split(done)
        assert np.stack(to_batch(answers)["answer"]).tolist() == [[1, 0.5], [3, 0.5]]
        assert done.schema.field("answer").type == plain.schema.field("answer").type


def test_rows_of_other_states_pass_through() -> None:
    others = [
        row_ids.skipped_rows(np.array([7, 8]), np.array([5, 6])),
        row_ids.failed_row(9, "before", ValueError("no")),
        row_ids.end_of_file(0, 10),
        row_ids.note_row("before", "note"),
    ]
    sealed = encode_rows("ask", model(), concat([good(text=["a"]), *others]))
    assert sealed[ERROR].to_pylist().count("") == 1
    done = decode_rows(through_ray(sealed), model(), set_aside)
    _, rest = row_ids.split(done)
    assert rest is not None
    states = rest[row_ids.STATE].to_pylist()
    assert sorted(states) == sorted(
        [row_ids.SKIPPED] * 2 + [row_ids.FAILED, row_ids.END, row_ids.NOTE]
    )
    assert sorted(filter(None, rest[row_ids.SHARE].to_pylist())) == [5, 6]


def test_batch_without_requests_is_unchanged() -> None:
    end = row_ids.end_of_file(0, 10)
    assert decode_rows(through_ray(encode_rows("ask", model(), end)), model(), set_aside).equals(
        end
    )


def test_row_refused_by_the_engine_keeps_its_share() -> None:
    shares = np.array([row_ids.FULL_SHARE // 2, row_ids.FULL_SHARE // 2])
    table = row_ids.with_own_columns(to_table({"text": ["a", "b"]}), pa.array([4, 4]), shares)

    def refusing(row: Row) -> Row:
        content = row["messages"][0]["content"]
        return {ERROR: "ValueError: too long"} if content == "b" else well(row)

    done = decode_rows(
        through_ray(encode_rows("ask", model(), table), refusing), model(), set_aside
    )
    assert done[row_ids.STATE].to_pylist() == [row_ids.GOOD, row_ids.FAILED]
    assert done[row_ids.SHARE].to_pylist() == shares.tolist()


def test_failed_row_ends_a_job_without_tolerance() -> None:
    def refuse(row_id: int, share: int, error: Exception) -> pa.Table:
        assert isinstance(error, EngineError)
        raise JobFailure(f"row {row_id}: {error}")

    sealed = encode_rows("ask", model(), good(text=pa.array(["a", None])))
    with pytest.raises(JobFailure, match="row 1: ValueError: input 'question' is null"):
        decode_rows(through_ray(sealed), model(), refuse)
