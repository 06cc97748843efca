"""Prompts with the same beginning follow each other, and results are in the order of the input."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from batchinference.pipeline.execution import concurrent_batches
from batchinference.pipeline.execution.block_codec import decode, encode
from batchinference.pipeline.execution.concurrent_batches import ConcurrentBatches
from batchinference.pipeline.execution.prefix_order import BEGINNING, prefix_order
from batchinference.pipeline.row_batch import RowBatch, merged
from batchinference.pipeline.rows_in_flight import RowsInFlight
from batchinference.plan.stages import stages_of
from batchinference.spec.models import HttpModel, VllmModel
from support.documents.http_models import chat
from support.documents.parsed import steps_of
from support.documents.vllm_models import vllm, vllm_step
from support.outputs.batches import failed, good

A, B = "a" * BEGINNING, "b" * BEGINNING


def turns(system: str, text: str) -> list[dict[str, str]]:
    return [{"content": system, "role": "system"}, {"content": text, "role": "user"}]


def block(**columns: Any) -> pa.Table:
    return encode(good(0, 0, pa.table(columns)))


def order(rows: pa.Table, *columns: str) -> list[int] | None:
    found = prefix_order(rows, columns or ("text",))
    return None if found is None else found.to_pylist()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["z", "b", "a"], None),
        ([A + "2", "z", A + "1", "y"], [2, 0, 1, 3]),
        ([A + "1", B + "1", A + "2", B + "2"], [0, 2, 1, 3]),
        ([A + "z", A + "y", A + "x"], None),
        ([A + B + "1", A + "z", A + B + "0"], [2, 0, 1]),
        (["same", "same"], [0, 1]),
        ([None, A + "1", "z", A + "1", None], [1, 3, 2, 0, 4]),
        ([None, None], None),
        ([1, 1], None),
        ([turns(A, "1"), turns("", "0"), turns(A, "2")], [0, 2, 1]),
    ],
    ids=["differ", "some", "interleaved", "all alike", "alike then equal", "equal", "nulls",
         "only nulls", "numbers", "conversations"],
)  # fmt: skip
def test_rows_with_the_same_beginning_follow_each_other(
    texts: list[Any], expected: list[int] | None
) -> None:
    assert order(block(text=texts)) == expected


def test_beginning_is_that_of_the_prompt() -> None:
    rows = block(document=[A, B, A], question=pa.array(["z", "y", "x"]).dictionary_encode())
    assert order(rows, "document", "question") == [2, 0, 1]
    assert order(rows, "question", "document") is None
    assert order(rows, "dropped") is None


def test_rows_of_an_input_row_stay_in_their_order() -> None:
    rows = good(0, 0, pa.table({"text": [A + "1", B, A + "0"]}))
    same = RowBatch(rows.table, rows.ids[[0, 1, 1]], rows.ids[:2])
    assert order(encode(same)) is None


def test_batches_are_in_prefix_order_and_results_in_that_of_the_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [*"zy", A + "2", B + "2", A + "1", "x", B + "1", A + "3"]
    batches = list[list[str]]()
    monkeypatch.setattr(concurrent_batches, "IN_FLIGHT", RowsInFlight())

    def run(batch: pa.Table) -> Iterator[pa.Table]:
        batches.append([text[-1] for text in decode(batch).table["text"].to_pylist()])
        yield batch

    (stage,) = stages_of(steps_of(vllm_step() | {"batchSize": 3}))
    concurrent = ConcurrentBatches(stage, lambda: run, threading.Event())
    given = merged([good(0, 0, pa.table({"text": texts})), failed(0, 9)])
    found = decode(pa.concat_tables(concurrent(encode(given))))
    assert found.table["text"].to_pylist() == texts
    assert found.ids.tolist() == given.ids.tolist()
    assert found.errors.num_rows == 1
    assert batches[0] == ["z", "y", "1"]
    assert [text for batch in batches for text in batch] == [*"zy123", *"12x"]


@pytest.mark.parametrize(
    ("model", "columns"),
    [
        (vllm(), ("text",)),
        (vllm(prompt="{b} {a}", inputs={"a": "x", "b": "y"}), ("y", "x")),
        (vllm(prompt="{a}", system="{b}", inputs={"a": "x", "b": "y"}), ("y", "x")),
        (vllm(prompt="{a}", images=["b"], inputs={"a": "x", "b": "y"}), ("x",)),
        (vllm(system="{b}", inputs={"a": "x", "b": "y"}), ("y", "x")),
        (vllm(sampling={"max_tokens": "{b}"}, inputs={"a": "x", "b": "y"}), ("x",)),
        (vllm(engine={"enable_prefix_caching": False}), ()),
        (vllm(task="embed"), ()),
        (chat(), ("text",)),
        (chat(api="embeddings"), ()),
    ],
)
def test_columns_of_a_prompt(model: dict[str, Any], columns: tuple[str, ...]) -> None:
    kind = VllmModel if model["runtime"] == "vllm" else HttpModel
    assert kind.model_validate(model).prefix_columns == columns
