"""Batch sizes: the search for the best size, and halving when memory runs out."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.pipeline.error_classification import is_about_the_row, is_out_of_memory
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.batch_size import (
    FIRST_SIZE,
    GROWTH_BATCHES,
    MAX_SMALLER,
    BatchSize,
)
from batchinference.pipeline.execution.step_runner import StepRunner
from batchinference.pipeline.row_batch import RowBatch
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.outputs.batches import Run, as_one_batch, good, outcomes
from support.outputs.stages import TOLERANT


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Exclude all modules that other tests have imported from the garbage collections."""
    gc.freeze()


class OutOfMemoryError(RuntimeError):
    """Has the same name as torch's error."""


class Limited:
    """A step on a device whose memory fits at most `limit` rows."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sizes: list[int] = []

    def __call__(self, batch: pa.Table) -> pa.Table:
        self.sizes.append(batch.num_rows)
        if batch.num_rows > self.limit:
            raise OutOfMemoryError("CUDA out of memory")
        if -1 in batch.column("n").to_pylist():
            raise ValueError("bad row")
        return batch


def runner(transform: Any, batch_size: Any) -> Run:
    step = Step.model_validate(
        {"name": "step", "python": {"callable": "m:Class"}, "batchSize": batch_size}
    )
    return as_one_batch(StepRunner(step, transform, TOLERANT))


def batch(*values: int) -> RowBatch:
    return good(0, 0, values)


def good_of(result: RowBatch) -> list[int]:
    return list(result.table.column("n").to_pylist())


def notes_of(result: RowBatch) -> list[dict[str, Any]]:
    assert {step for step, _ in result.notes} <= {"step"}
    notes = [json.loads(note) for _, note in result.notes]
    return [note for note in notes if "batch_size" in note]


def test_batches_are_halved_until_memory_suffices() -> None:
    for size in ("auto", 64, 13):
        for limit in (12, 5, 1):
            device = Limited(limit)
            result = runner(device, size)(batch(*range(100)))
            assert good_of(result) == list(range(100)), (size, limit)
            assert device.sizes[-1] <= limit
            assert notes_of(result)[-1]["batch_size"] <= limit


def test_halved_size_is_kept() -> None:
    device = Limited(12)
    step = runner(device, 16)
    step(batch(*range(32)))
    device.sizes.clear()
    assert notes_of(step(batch(*range(32)))) == []
    assert device.sizes == [8, 8, 8, 8]


def test_halved_size_grows_again_if_memory_ran_out_with_fewer_rows() -> None:
    """The last three rows of a block were large; others are not."""
    size = BatchSize("step", 64)
    size.record_out_of_memory(3, OutOfMemoryError())
    reached = [size.size]
    for _ in range(7 * GROWTH_BATCHES):
        size.record_success(size.size, 1.0)
        reached.append(size.size)
    assert list(dict.fromkeys(reached)) == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("first", [3, 64])
def test_size_grows_again_after_several_large_rows(first: int) -> None:
    size = BatchSize("step", 64)
    size.record_success(64, 1.0)
    size.record_out_of_memory(first, OutOfMemoryError())
    for _ in range(GROWTH_BATCHES):
        size.record_success(size.size, 1.0)
    size.record_out_of_memory(size.size, OutOfMemoryError())
    for _ in range(20 * GROWTH_BATCHES):
        size.record_success(size.size, 1.0)
    assert size.size == 64


def test_size_that_never_fits_is_tried_ever_less_often() -> None:
    size, limit, failures = BatchSize("step", 64), 16, 0
    size.record_out_of_memory(3, OutOfMemoryError())
    for _ in range(200 * GROWTH_BATCHES):
        if size.size > limit:
            failures += 1
            size.record_out_of_memory(size.size, OutOfMemoryError())
        else:
            size.record_success(size.size, 1.0)
    assert size.size == limit
    assert failures < 10


class Tensor:
    """A placeholder for memory of the device."""


class Holding:
    """Runs out of memory once, with an error that keeps a reference to the memory of the batch."""

    def __init__(self) -> None:
        self.reference: weakref.ref[Tensor] | None = None

    def __call__(self, batch: pa.Table) -> pa.Table:
        if self.reference is None:
            tensor = Tensor()
            self.reference = weakref.ref(tensor)
            try:
                raise OutOfMemoryError("CUDA out of memory")
            except OutOfMemoryError as error:
                kept = error  # a reference cycle: error, traceback, frame
                raise kept from None
        return batch


@pytest.mark.parametrize("kind", ["cuda", "npu", "xpu"])
def test_device_cache_is_emptied_before_the_smaller_batch(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform, freed = Holding(), []

    def empty_cache() -> None:
        assert transform.reference is not None
        freed.append(transform.reference() is None)

    backend = SimpleNamespace(empty_cache=empty_cache)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**{kind: backend}))
    assert good_of(runner(transform, 4)(batch(1, 2, 3, 4))) == [1, 2, 3, 4]
    assert freed == [True]


def test_out_of_memory_does_not_import_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert good_of(runner(Limited(2), 4)(batch(1, 2, 3))) == [1, 2, 3]
    assert "torch" not in sys.modules


def test_bad_row_is_isolated_after_halving() -> None:
    values = [-1 if n == 41 else n for n in range(50)]
    result = runner(Limited(12), 32)(batch(*values))
    assert good_of(result) == [n for n in range(50) if n != 41]
    assert outcomes(result) == {n: "failed" if n == 41 else "good" for n in range(50)}


def test_out_of_memory_with_one_row_fails_the_job(messages: Messages) -> None:
    with messages.raises(JobFailure):
        runner(Limited(0), "auto")(batch(1, 2, 3))


def test_out_of_memory_errors_are_recognized() -> None:
    class Fail(Exception):
        """The error of ONNX Runtime, which has no specific type for it."""

    Fail.__module__ = "onnxruntime.capi.onnxruntime_pybind11_state"
    for error in (
        *(OutOfMemoryError("x"), MemoryError(), RuntimeError("CUDA error: out of memory")),
        Fail("Failed to allocate memory for requested buffer of size 4096"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes"),  # JAX
        RuntimeError("OOM when allocating tensor with shape[1000000]"),  # TensorFlow
        RuntimeError("NCCL error in: x.cpp:1\nLast error:\nCuda failure 2 'out of memory'"),
    ):
        assert is_out_of_memory(error)
        assert not is_about_the_row(error)
    of_row = RuntimeError("cannot parse 'I am out of memory'")
    for error in (RuntimeError("no shape"), ValueError("out of memory"), Fail("no"), of_row):
        assert not is_out_of_memory(error)


def search(seconds_of: dict[int, float], limit: int = 256) -> BatchSize:
    """Run the search, in which a batch of each size takes the given seconds. Return its result."""
    size = BatchSize("step", FIRST_SIZE, limit)
    while size.search_limit is not None:
        size.record_success(size.size, seconds_of[size.size])
    return size


def test_search_ends_at_the_size_with_the_most_rows_per_second() -> None:
    cases: list[tuple[dict[int, float], int]] = [
        ({8: 1.0, 16: 1.0, 32: 1.0, 64: 2.0}, 32),  # 64 rows take twice as long as 32
        ({8: 1.0, 16: 2.5}, 8),  # slower
        ({8: 1.0, 16: 1.98, 32: 3.0}, 16),  # the gain is too small
        ({8: 1.0, 16: 1.0, 32: 1.0, 64: 1.0, 128: 1.0, 256: 1.0}, 256),  # the upper limit
    ]
    for seconds, expected in cases:
        match = search(seconds)
        assert match.size == expected
        rate = pytest.approx(expected / seconds[expected], abs=0.1)
        (note,) = [json.loads(text) for text in match.take_notes()]
        assert note == {"batch_size": expected, "rows_per_second": rate}


@pytest.mark.parametrize(("rows", "seconds", "expected"), [(24, 1.0, 32), (17, 1.5, 16)])
def test_search_ends_if_batches_stay_smaller_than_the_size(
    rows: int, seconds: float, expected: int
) -> None:
    """In tasks, the batches of a slow step are cut to take about a second."""
    size = BatchSize("step", FIRST_SIZE, 256)
    while size.size < 32:
        size.record_success(size.size, 1.0)
    for _ in range(MAX_SMALLER):
        assert size.search_limit is not None
        size.record_success(rows, seconds)
    assert (size.size, size.search_limit) == (expected, None)
    assert len(size.take_notes()) == 1


def test_incomplete_batch_is_not_measured() -> None:
    size = BatchSize("step", 8, 256)
    for _ in range(10):
        size.record_success(3, 0.001)
    assert (size.size, size.search_limit) == (8, 256)


@given(ids=st.lists(st.integers(0, 4), min_size=1, max_size=12), size=st.integers(1, 12))
def test_results_in_several_batches_lose_no_row_of_an_input_row(ids: list[int], size: int) -> None:
    """Ray may put other rows between the rows of an input row. Each result here is large."""
    values = pa.table({"n": range(len(ids))})
    of_rows = np.array(ids, dtype=np.int64)
    row_batch = RowBatch(values, of_rows, np.unique(of_rows))
    step = Step.model_validate(
        {"name": "step", "python": {"callable": "m:Class"}, "batchSize": size}
    )
    results = list(StepRunner(step, lambda part: part, TOLERANT, result_bytes=1)(row_batch))
    if ids == sorted(ids) and ids[size - 1 : size] not in ([], ids[-1:]):
        assert len(results) > 1
    assert sorted(n for one in results if one.ids.size for n in one.table["n"].to_pylist()) == [
        *range(len(ids))
    ]
    assert sorted(one for each in results for one in each.input_ids) == sorted(set(ids))
    assert [one for each in results for one in each.filtered] == []
    assert all(set(each.ids) == set(each.input_ids) for each in results)
