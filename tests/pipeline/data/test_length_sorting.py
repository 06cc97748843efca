"""The order in which rows reach a model: by length, or by the beginning of prompts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from threading import Event
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.execution.block_codec import decode, encode
from batchinference.pipeline.execution.concurrent_batches import ConcurrentBatches
from batchinference.pipeline.execution.dataset import BlockCalls
from batchinference.pipeline.execution.length_sorting import (
    WINDOW_ROWS,
    WindowLimits,
    columns_of_first_model,
    longest_first,
    text_lengths,
)
from batchinference.pipeline.execution.prefix_order import BEGINNING, prefix_order
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import SegmentRunner, StepRunner
from batchinference.pipeline.input.planning import FILE_BYTES
from batchinference.pipeline.row_batch import RowBatch, merged
from batchinference.pipeline.rows_in_flight import RowsInFlight
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import load_step
from batchinference.plan import Stage
from batchinference.plan.stages import stages_of
from batchinference.spec.models import HttpModel, VllmModel
from support.documents.http_models import chat
from support.documents.minimal import Document, model_step
from support.documents.parsed import filter_step, steps_of
from support.documents.vllm_models import vllm, vllm_step
from support.outputs.batches import end, failed, filtered, good, plain
from support.outputs.stages import TOLERANT
from support.tiers import examples


@st.composite
def windows(draw: st.DrawFn) -> RowBatch:
    """Return a window: each input row has become texts, possibly none or several of them, and Ray
    may have put rows of it into other windows."""
    text = st.text("abc", max_size=5) | st.sampled_from(["bad", "abc bad", None])
    texts = draw(st.lists(st.lists(text, max_size=3), max_size=12))
    parents = np.repeat(np.arange(len(texts)), [len(each) for each in texts])
    rows = pa.table({"text": pa.array([t for each in texts for t in each], pa.string())})
    batch = good(0, 0, range(len(texts))).derived(rows, parents, [])
    if draw(st.booleans()):
        cut = draw(st.integers(0, rows.num_rows))
        batch = decode(encode(batch).slice(cut))
    return (
        merged([batch, failed(1, 0), filtered(1, 1), end(1, 2)]) if batch.shares is None else batch
    )


@settings(max_examples=examples(150), deadline=None)
@given(windows(), st.integers(1, 4), st.sampled_from([1, 60, 1 << 40]))
def test_results_are_those_of_the_input_order(window: RowBatch, batch_size: int, size: int) -> None:
    """They have the same rows, ids, order, failed and filtered rows."""
    python = {"callable": "user_code:letters", "method": "flatMap"}
    step: Document = {"name": "own", "python": python, "batchSize": batch_size}
    stage = Stage("own", tuple(steps_of(step)), batch_size=batch_size)
    segment, (own,) = replace(Segment.of([stage], TOLERANT), texts=("text",)), stage.steps
    run = StepRunner(own, load_step(own, Device()), TOLERANT, result_bytes=size)
    with patch.object(Segment, "load", lambda _: run):
        of_blocks = list(segment.of_block(window, Event()))
    (expected,) = SegmentRunner([stage], TOLERANT)(window)
    assert content(of_blocks) == content([expected])
    for result in of_blocks:
        assert np.isin(result.ids, result.input_ids).all()


def content(results: list[RowBatch]) -> list[Any]:
    """Return the outcome of each input row. Input rows have the order of the results, if
    these are not in parts."""
    rows: dict[int, list[Any]] = {}
    for result in results:
        actual = plain(result)
        for row_id, row in actual["table"]["rows"]:
            rows.setdefault(row_id, []).append(row)
    ordered = list(rows.items()) if len(results) == 1 else sorted(rows.items())
    shares: dict[int, int] = {}
    for result in results:
        full = np.full(len(result.input_ids), 1 << 40) if result.shares is None else result.shares
        for row_id, share in zip(result.input_ids.tolist(), full.tolist(), strict=True):
            shares[row_id] = shares.get(row_id, 0) + share
    errors = sorted(
        (row["id"], row["error"]) for result in results for row in result.errors.to_pylist()
    )
    lost = sorted(row for result in results for row in result.filtered.tolist())
    return [ordered, shares, errors, lost, [end for result in results for end in result.ends]]


def texts(*lengths: int) -> RowBatch:
    return good(0, 0, pa.table({"text": ["x" * length for length in lengths], "n": lengths}))


def test_rows_of_an_input_row_stay_together_and_in_order() -> None:
    batch = texts(1, 2, 3, 5, 2)
    exploded = batch.derived(batch.table, np.array([0, 1, 2, 0, 1]), [])
    first = longest_first(exploded, ("text",))
    assert first.ids.tolist() == [0, 0, 2, 1, 1]
    assert first.table["n"].to_pylist() == [1, 5, 3, 2, 2]


def test_large_rows_are_not_copied() -> None:
    batch = texts(10, 20)
    assert longest_first(batch, ("text",), max_bytes=10) is batch


@pytest.mark.parametrize(
    ("step", "sorted_"),
    [
        (model_step(), True),
        (model_step(model=model_step()["model"] | {"task": "text-generation"}), False),
        ({"name": "own", "python": {"callable": "user_code:Scaler"}}, False),
    ],
)
def test_actor_of_a_text_model_gets_the_longest_texts_first(
    monkeypatch: pytest.MonkeyPatch, step: Document, sorted_: bool
) -> None:
    given_: list[list[int]] = []

    def run(batch: RowBatch, stopping: Event) -> Iterator[RowBatch]:
        given_.append(batch.table["n"].to_pylist())
        yield batch

    monkeypatch.setattr(Segment, "load", lambda _: run)
    calls = BlockCalls("own", Segment.of(stages_of(steps_of(step)), TOLERANT), Event())
    results = [decode(block) for block in calls(encode(texts(2, 9, 1, 5)))]
    assert given_ == [[9, 5, 2, 1] if sorted_ else [2, 9, 1, 5]]
    assert merged(results).table.equals(texts(2, 9, 1, 5).table)


@pytest.mark.parametrize(
    ("rows", "row_bytes", "batch_size", "replicas", "expected"),
    [
        (1500, 100, 64, 1, 500),
        (6000, 100, 64, 4, 500),
        (10**9, 100, 64, 8, 16 * 64),
        (10**9, 100, 512, 8, WINDOW_ROWS),
        (10**9, FILE_BYTES // 100, 64, 1, 100),
        (10**9, 100, 5000, 1, 5000),
        (0, 64, 32, 1, 32),
    ],
)
def test_windows_are_limited_by_rows_bytes_batches_and_replicas(
    rows: int, row_bytes: int, batch_size: int, replicas: int, expected: int
) -> None:
    assert WindowLimits(rows, row_bytes).window_rows(batch_size, replicas) == expected


RENAMED = [
    {"name": "a", "renameColumns": {"body": "page"}},
    {"name": "b", "renameColumns": {"page": "text"}},
]


@pytest.mark.parametrize(
    ("steps", "columns"),
    [
        ([], ()),
        ([filter_step()], ()),
        ([filter_step(), model_step()], ("text",)),
        ([*RENAMED, model_step()], ("text",)),
    ],
)  # fmt: skip
def test_columns_of_the_first_model(steps: list[Document], columns: tuple[str, ...]) -> None:
    assert columns_of_first_model(steps_of(*steps)) == columns


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_dictionary_encoded_texts_have_lengths(kind: pa.DataType) -> None:
    texts = pa.array(["xx", None, "xxx", "xx"], kind).dictionary_encode()
    lengths = text_lengths(pa.table({"a": texts}), ("a",))
    assert lengths is not None
    assert lengths.tolist() == [2, 0, 3, 2]
    numbers = pa.array([1, 2, 1]).dictionary_encode()
    assert text_lengths(pa.table({"a": numbers}), ("a",)) is None


A, B = "a" * BEGINNING, "b" * BEGINNING


def turns(system: str, text: str) -> list[dict[str, str]]:
    return [{"content": system, "role": "system"}, {"content": text, "role": "user"}]


def block(**columns: Any) -> pa.Table:
    return encode(good(0, 0, pa.table(columns)))


def order(rows: pa.Table, *columns: str) -> list[int] | None:
    result = prefix_order(rows, columns or ("text",))
    return None if result is None else result.to_pylist()


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


def test_batches_are_in_prefix_order_and_results_in_that_of_the_input() -> None:
    texts = [*"zy", A + "2", B + "2", A + "1", "x", B + "1", A + "3"]
    batches = list[list[str]]()

    def run(batch: pa.Table) -> Iterator[pa.Table]:
        batches.append([text[-1] for text in decode(batch).table["text"].to_pylist()])
        yield batch

    (stage,) = stages_of(steps_of(vllm_step() | {"batchSize": 3}))
    concurrent = ConcurrentBatches(stage, run, threading.Event(), in_flight=RowsInFlight())
    given = merged([good(0, 0, pa.table({"text": texts})), failed(0, 9)])
    text = decode(pa.concat_tables(concurrent(encode(given))))
    assert text.table["text"].to_pylist() == texts
    assert text.ids.tolist() == given.ids.tolist()
    assert text.errors.num_rows == 1
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
