"""Windows of texts: they are computed longest first, and the results are in the order of the input.

For the windows of tasks that read, see test_segments.py."""

from __future__ import annotations

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

from batchinference.pipeline.execution import length_sorting, step_runner
from batchinference.pipeline.execution.block_codec import decode, encode
from batchinference.pipeline.execution.dataset import BlockCalls
from batchinference.pipeline.execution.length_sorting import (
    WINDOW_ROWS,
    WindowLimits,
    columns_of_first_model,
    longest_first,
    text_lengths,
)
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner
from batchinference.pipeline.input.planning import FILE_BYTES
from batchinference.pipeline.row_batch import RowBatch, merged
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Stage
from batchinference.plan.stages import stages_of
from support.documents.minimal import Document, model_step
from support.documents.parsed import filter_step, steps_of
from support.outputs.batches import end, failed, filtered, good, plain
from support.tiers import examples

TOLERANT = ErrorHandling(tolerant=True, input=Location("/nowhere/input.parquet"))


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
    segment = replace(Segment.of([stage], TOLERANT), texts=("text",))
    with patch.object(step_runner, "RESULT_BYTES", size):
        found = list(segment.of_block(window, Event()))
    (expected,) = StageRunner(stage, TOLERANT)(window)
    assert content(found) == content([expected])
    for result in found:
        assert np.isin(result.ids, result.source).all()


def content(results: list[RowBatch]) -> list[Any]:
    """Return the outcome of each input row. Input rows have the order of the results, if
    these are not in parts."""
    rows: dict[int, list[Any]] = {}
    for result in results:
        found = plain(result)
        for row_id, row in found["table"]["rows"]:
            rows.setdefault(row_id, []).append(row)
    ordered = list(rows.items()) if len(results) == 1 else sorted(rows.items())
    shares: dict[int, int] = {}
    for result in results:
        whole = np.full(len(result.source), 1 << 40) if result.shares is None else result.shares
        for row_id, share in zip(result.source.tolist(), whole.tolist(), strict=True):
            shares[row_id] = shares.get(row_id, 0) + share
    errors = sorted(
        (row["id"], row["error"]) for result in results for row in result.errors.to_pylist()
    )
    lost = sorted(row for result in results for row in result.filtered.tolist())
    ends = [end for result in results for end in result.ends]
    return [ordered, shares, errors, lost, ends]


def texts(*lengths: int) -> RowBatch:
    return good(0, 0, pa.table({"text": ["x" * length for length in lengths], "n": lengths}))


def test_rows_of_an_input_row_stay_together_and_in_order() -> None:
    batch = texts(1, 2, 3, 5, 2)
    exploded = batch.derived(batch.table, np.array([0, 1, 2, 0, 1]), [])
    found = longest_first(exploded, ("text",))
    assert found.ids.tolist() == [0, 0, 2, 1, 1]
    assert found.table["n"].to_pylist() == [1, 5, 3, 2, 2]


def test_large_rows_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_sorting, "WINDOW_BYTES", 10)
    batch = texts(10, 20)
    assert longest_first(batch, ("text",)) is batch


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

    def run(batch: RowBatch) -> Iterator[RowBatch]:
        given_.append(batch.table["n"].to_pylist())
        yield batch

    def load(_: Segment) -> list[Any]:
        return [lambda batch, stopping: run(batch)]

    monkeypatch.setattr(Segment, "load", load)
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
