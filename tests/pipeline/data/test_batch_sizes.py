"""How many rows a batch has, and what happens when memory runs out."""

from __future__ import annotations

import json
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline import rows, stage
from batchinference.pipeline.batch_sizes import FIRST_SIZE, BatchSize, is_out_of_memory
from batchinference.pipeline.failures import JobFailure
from batchinference.pipeline.stage import ErrorHandling, StepRunner
from batchinference.pipeline.storage import Address
from batchinference.spec.steps import Step


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


class Limited:
    """A step on a device that holds so many rows at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.sizes: list[int] = []

    def __call__(self, batch: pa.Table) -> pa.Table:
        self.sizes.append(batch.num_rows)
        if batch.num_rows > self.most:
            raise OutOfMemoryError("CUDA out of memory")
        if -1 in batch.column("n").to_pylist():
            raise ValueError("bad row")
        return batch


def runner(transform: Any, batch_size: Any) -> StepRunner:
    step = Step.model_validate(
        {"name": "step", "python": {"callable": "m:Class"}, "batchSize": batch_size}
    )
    return StepRunner(step, transform, ErrorHandling(True, Address("/none")))


def table(*values: int) -> pa.Table:
    return rows.with_ids(pa.table({"n": pa.array(values, pa.int64())}), 0, 0)


def good_of(result: pa.Table) -> list[int]:
    return sorted(rows.split(result)[0].column("n").to_pylist())


def notes_of(result: pa.Table) -> list[dict[str, Any]]:
    if rows.ERROR not in result.column_names:
        return []
    notes = result.filter(pa.compute.equal(result.column(rows.STATE), rows.NOTE))
    return [json.loads(text) for text in notes.column(rows.ERROR).to_pylist()]


@pytest.mark.parametrize("most", [12, 5, 1])
@pytest.mark.parametrize("size", ["auto", 64, 13])
def test_batches_are_halved_until_memory_suffices_and_no_row_is_lost(most: int, size: Any) -> None:
    device = Limited(most)
    step = runner(device, size)
    result = step(table(*range(100)))
    assert good_of(result) == list(range(100))
    assert device.sizes[-1] <= most
    assert notes_of(result)[-1]["batch_size"] <= most


def test_the_smaller_size_is_kept() -> None:
    device = Limited(12)
    step = runner(device, 16)
    step(table(*range(32)))
    device.sizes.clear()
    assert notes_of(step(table(*range(32)))) == []
    assert device.sizes == [8, 8, 8, 8]


class Tensor:
    """Something large on the device."""


class Holding:
    """A step that runs out of memory at first, and whose error holds what the batch took."""

    def __init__(self) -> None:
        self.held: weakref.ref[Tensor] | None = None

    def __call__(self, batch: pa.Table) -> pa.Table:
        if self.held is None:
            tensor = Tensor()
            self.held = weakref.ref(tensor)
            try:
                raise OutOfMemoryError("CUDA out of memory")
            except OutOfMemoryError as error:
                kept = error  # a cycle: the error, its traceback, this frame
                raise kept from None
        return batch


@pytest.mark.parametrize("kind", ["cuda", "npu", "xpu"])
def test_the_cache_of_the_device_is_emptied_before_the_smaller_batch(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform, gone = Holding(), []

    def empty_cache() -> None:
        assert transform.held is not None
        gone.append(transform.held() is None)

    backend = SimpleNamespace(empty_cache=empty_cache)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**{kind: backend}))
    assert good_of(runner(transform, 4)(table(1, 2, 3, 4))) == [1, 2, 3, 4]
    assert gone == [True]


def test_no_cache_is_emptied_while_memory_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[bool] = []
    backend = SimpleNamespace(empty_cache=lambda: emptied.append(True))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=backend))
    runner(Limited(12), 12)(table(*range(24)))
    assert emptied == []


def test_memory_that_runs_out_does_not_load_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert good_of(runner(Limited(2), 4)(table(1, 2, 3))) == [1, 2, 3]
    assert "torch" not in sys.modules


def test_a_bad_row_is_still_found_alone() -> None:
    values = [-1 if n == 41 else n for n in range(50)]
    result = runner(Limited(12), 32)(table(*values))
    assert good_of(result) == [n for n in range(50) if n != 41]
    _, rest = rows.split(result)
    assert rest is not None
    failed = rest.filter(pa.compute.equal(rest.column(rows.STATE), rows.FAILED))
    assert rows.ids_of(failed).tolist() == [rows.pack(0, 41)]


def test_a_device_that_holds_no_row_fails_the_job() -> None:
    with pytest.raises(JobFailure, match="memory runs out with one row a batch"):
        runner(Limited(0), "auto")(table(1, 2, 3))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def search(seconds_of: dict[int, float], most: int = 256) -> BatchSize:
    """A search over sizes whose batches take so long."""
    size = BatchSize("step", FIRST_SIZE, most)
    while size.most is not None:
        size.ran(size.size, seconds_of[size.size])
    return size


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({8: 1.0, 16: 1.0, 32: 1.0, 64: 2.0}, 32),  # twice the rows in twice the time
        ({8: 1.0, 16: 2.5}, 8),  # slower
        ({8: 1.0, 16: 1.98, 32: 3.0}, 16),  # hardly faster is no reason to go on
        ({8: 1.0, 16: 1.0, 32: 1.0, 64: 1.0, 128: 1.0, 256: 1.0}, 256),  # as far as it goes
    ],
)
def test_the_search_ends_at_the_size_with_the_most_rows_a_second(
    seconds: dict[int, float], expected: int
) -> None:
    found = search(seconds)
    assert found.size == expected
    (note,) = [json.loads(text) for text in found.take_notes()]
    assert note == {
        "batch_size": expected,
        "rows_per_second": pytest.approx(expected / seconds[expected], abs=0.1),
    }


def test_what_is_left_of_a_block_is_no_measure() -> None:
    size = BatchSize("step", 8, 256)
    for _ in range(10):
        size.ran(3, 0.001)
    assert (size.size, size.most) == (8, 256)


def test_a_size_that_was_asked_for_is_not_searched() -> None:
    device = Limited(1000)
    runner(device, 10)(table(*range(35)))
    assert device.sizes == [10, 10, 10, 5]


def test_without_a_size_a_batch_is_a_block() -> None:
    step = Step.model_validate({"name": "step", "python": {"callable": "m:f"}})
    device = Limited(1 << 30)
    stage.StepRunner(step, device, ErrorHandling(True, Address("/none")))(table(*np.arange(70)))
    assert device.sizes == [70]
