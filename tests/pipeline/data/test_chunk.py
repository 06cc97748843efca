"""The chunk step: one row for each chunk of a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import TransformResult, check_step, chunk, load_step
from batchinference.spec.steps import Step
from plugins.messages import Messages

TEXT = "One two. Three four. Five"


def step(**fields: Any) -> Step:
    return Step.model_validate({"name": "cut", "chunk": {"column": "text", "size": 13, **fields}})


def chunked(table: pa.Table, **fields: Any) -> TransformResult:
    changed = load_step(step(**fields), Device())(table)
    assert isinstance(changed, TransformResult)
    return changed


def test_other_columns_are_repeated() -> None:
    found = chunked(pa.table({"n": [1, 2], "text": [TEXT, "Six"], "m": ["a", "b"]}))
    assert found.parents.tolist() == [0, 0, 0, 1]
    assert found.table.to_pydict() == {
        "n": [1, 1, 1, 2],
        "text": ["One two. ", "Three four. ", "Five", "Six"],
        "m": ["a", "a", "a", "b"],
        "chunk_index": [0, 1, 2, 0],
        "chunk_start": [0, 9, 21, 0],
        "chunk_end": [9, 21, 25, 3],
    }


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_null_and_empty_texts_stay_one_row(kind: pa.DataType) -> None:
    found = chunked(pa.table({"text": pa.array([None, "", TEXT], pa.string()).cast(kind)}))
    assert found.parents.tolist() == [0, 1, 2, 2, 2]
    first, second, *_ = found.table.to_pylist()
    assert set(first.values()) == {None}
    assert list(second.values()) == ["", 0, 0, 0]
    nulls = chunked(pa.table({"text": pa.nulls(2)}))
    assert nulls.table.num_rows == 2


def test_tokens_are_those_of_the_model(tiny: Callable[[str], str]) -> None:
    fields = {"unit": "tokens", "tokenizer": tiny("text_model"), "size": 12, "overlap": 6}
    found = chunked(pa.table({"text": ["One two three four"]}), **fields)
    assert found.table["text"].to_pylist() == ["One two ", "two three ", "three four"]


def test_words_are_counted() -> None:
    found = chunked(pa.table({"text": [TEXT]}), unit="words", size=2)
    assert found.table["text"].to_pylist() == ["One two. ", "Three four. ", "Five"]


def test_values_that_are_no_texts_fail_their_rows() -> None:
    found = chunked(pa.table({"text": [1, 2]}))
    assert sorted(found.failed) == [0, 1]


def test_result_covers_the_first_rows_if_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "RESULT_BYTES", 100)
    found = chunked(pa.table({"text": ["x" * 60] * 4}))
    assert found.rows == 2
    assert set(found.parents.tolist()) == {0, 1}


def test_large_row_among_small_ones_ends_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "RESULT_BYTES", 2000)
    found = chunked(pa.table({"text": [TEXT] * 20, "other": ["z" * 3000] + ["z"] * 19}))
    assert found.rows == 1


def test_existing_column_is_not_replaced(messages: Messages) -> None:
    with messages.raises(JobFailure):
        chunked(pa.table({"text": ["a"], "chunk_start": [1]}))


def test_tokenizer_that_does_not_exist_is_refused() -> None:
    missing = step(unit="tokens", tokenizer="./nowhere/model")
    for check in (check_step, lambda one: load_step(one, Device())):
        with pytest.raises(ModelLoad, match=r"'\./nowhere/model' not found"):
            check(missing)
