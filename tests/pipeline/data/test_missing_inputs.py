"""Rows with null and empty inputs: their output is null, they fail, or the model computes them."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner
from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.runtimes.missing_inputs import missing_inputs
from batchinference.plan.stages import stages_of
from support.documents.parsed import steps_of
from support.models.replicas import model_of
from support.outputs.batches import as_one_batch, errors_of, good, outcomes, rows_of
from support.outputs.row_warnings import warnings_of
from support.outputs.stages import TOLERANT


def ran(
    *batches: dict[str, Any], errors: ErrorHandling = TOLERANT, after: Any = (), **fields: Any
) -> list[RowBatch]:
    """Return the results of a model for successive batches."""
    text = {"runtime": "transformers", "task": "text-classification", "inputs": {"text": "text"}}
    step = {"name": "classify", "model": {**text, "output": "label", **fields}}
    stages = stages_of(steps_of(step, *after))
    runs = [as_one_batch(StageRunner(stage, errors)) for stage in stages]
    given = (good(0, 0, pa.table(columns)) for columns in batches)
    return [reduce(lambda batch, run: run(batch), runs, batch) for batch in given]


TEXTS = ["a", None, "", " \u00a0\n\u3000", "b"]


def labels(batch: RowBatch) -> list[Any]:
    return [row["label"] and row["label"]["label"] for _, row in rows_of(batch)]


def test_output_of_null_and_empty_texts_is_null(bert: str) -> None:
    (found,) = ran({"text": TEXTS}, source=bert)
    assert outcomes(found) == dict.fromkeys(range(5), "good")
    assert [label is None for label in labels(found)] == [False, True, True, True, False]
    expected = [(1, "NullInput", 0), (2, "EmptyInput", 0), (3, "EmptyInput", 0)]
    assert warnings_of(found) == expected
    (alone,) = ran({"text": ["a", "b"]}, source=bert)
    assert [label for label in labels(found) if label] == labels(alone)


def test_null_and_empty_texts_fail_if_wanted(bert: str) -> None:
    (found,) = ran({"text": TEXTS}, source=bert, nullInput="fail", emptyInput="fail")
    assert [row for row, outcome in outcomes(found).items() if outcome == "failed"] == [1, 2, 3]
    assert "nullInput" in errors_of(found)[1]
    assert "emptyInput" in errors_of(found)[2]
    assert warnings_of(found) == []


def test_model_computes_empty_texts_if_wanted(bert: str) -> None:
    (found,) = ran({"text": TEXTS}, source=bert, emptyInput="compute")
    assert [label is None for label in labels(found)] == [False, True, False, False, False]


def test_warnings_that_fail_their_rows(bert: str) -> None:
    (found,) = ran({"text": TEXTS}, source=bert, errors=replace(TOLERANT, failing=["NullInput"]))
    assert [row for row, outcome in outcomes(found).items() if outcome == "failed"] == [1]


def test_batch_of_nulls_has_the_type_of_earlier_batches(bert: str) -> None:
    nulls = {"text": pa.nulls(2, pa.string())}
    first, some, last = ran(nulls, {"text": ["a"]}, nulls, source=bert)
    assert first.table.schema.field("label").type == pa.null()
    assert last.table.schema.field("label").type == some.table.schema.field("label").type
    assert labels(last) == labels(first) == [None, None]


def test_null_embeddings_stay_null_in_later_steps(bert: str) -> None:
    after = [{"name": "some", "filter": "text is None or text != 'b'"}]
    fields = {"task": "feature-extraction", "source": bert, "after": after}
    (found,) = ran({"text": TEXTS}, **fields)
    assert [row["label"] is None for _, row in rows_of(found)] == [False, True, True, True]


def test_rows_around_failed_rows_keep_their_warnings(bert: str) -> None:
    values = pa.array(["a", None, "x " * 50, "", "b"]).dictionary_encode()
    fields = {"tooLong": "fail", "options": {"max_length": 4}}
    (found,) = ran({"text": values}, source=bert, **fields)
    assert outcomes(found) == {0: "good", 1: "good", 2: "failed", 3: "good", 4: "good"}
    assert warnings_of(found) == [(1, "NullInput", 0), (3, "EmptyInput", 0)]


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
    found = missing_inputs(model, pa.table({"x": values})).skipped
    assert [found.get(row) for row in range(len(expected))] == expected


def test_row_with_several_inputs_is_missing_if_one_is_null_or_all_are_empty() -> None:
    model = model_of("http", ("a", "b"), api="chat", name="m", url="http://a", prompt="{a}: {b}")
    table = pa.table({"a": ["x", "", "", None], "b": ["", "", None, "y"]})
    assert missing_inputs(model, table).skipped == {
        1: "EmptyInput", 2: "NullInput", 3: "NullInput"
    }  # fmt: skip


def test_row_with_a_null_part_in_its_prompt_is_missing() -> None:
    fields = {"api": "chat", "name": "m", "url": "http://a", "prompt": "{a.b[0]}"}
    values = [{"b": ["x"]}, {"b": []}, {"b": None}, None]
    found = missing_inputs(model_of("http", ("a",), **fields), pa.table({"a": values})).skipped
    assert found == dict.fromkeys((1, 2, 3), "NullInput")


def test_numbers_do_not_make_a_row_complete() -> None:
    fields = {"task": "audio-classification", "source": "org/model"}
    model = model_of("transformers", ("audio", "sampling_rate"), **fields)
    table = pa.table({"audio": [[0.5], []], "sampling_rate": [8000, 8000]})
    assert missing_inputs(model, table).skipped == {1: "EmptyInput"}


def test_null_is_sent_to_a_json_endpoint_if_wanted() -> None:
    fields = {"api": "json", "url": "http://a", "body": {"a": "{a}"}}
    table = pa.table({"a": [None, 1]})
    assert missing_inputs(model_of("http", ("a",), **fields), table).skipped == {0: "NullInput"}
    sent = model_of("http", ("a",), **fields, nullInput="compute")
    assert missing_inputs(sent, table).skipped == {}
