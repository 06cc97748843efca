"""Batches of one actor that are computed at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from batchinference.pipeline.errors import EngineDied, JobFailure
from batchinference.pipeline.execution import concurrent_batches, dataset
from batchinference.pipeline.execution.block_codec import encode
from batchinference.pipeline.execution.concurrent_batches import (
    ConcurrentBatches,
    concurrency_of_actors,
    concurrent_or_single,
)
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.storage.location import Location
from batchinference.plan.stages import stages_of
from support.documents.parsed import steps_of
from support.documents.vllm_models import vllm_step
from support.outputs.batches import good

SECONDS = 30


def block(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers})


def numbers(tables: Iterator[pa.Table]) -> list[int]:
    return [number for table in tables for number in table["n"].to_pylist()]


def concurrent(
    make: Callable[[], Any], rows: int, at_once: int, stopping: threading.Event | None = None
) -> ConcurrentBatches:
    step = vllm_step(maxConcurrentBatches=at_once) | {"batchSize": rows}
    (stage,) = stages_of(steps_of(step))
    return ConcurrentBatches(stage, make, stopping or threading.Event())


def each(compute: Callable[[pa.Table], Any]) -> Callable[[], Any]:
    """Return what makes a function that yields each batch after `compute`."""

    def run(batch: pa.Table) -> Iterator[pa.Table]:
        compute(batch)
        yield batch

    return lambda: run


def test_batches_of_one_block_are_computed_at_the_same_time() -> None:
    together = threading.Barrier(3)
    run = concurrent(each(lambda _: together.wait(SECONDS)), rows=2, at_once=3)
    assert numbers(run(block(1, 2, 3, 4, 5))) == [1, 2, 3, 4, 5]


def test_next_block_is_computed_while_one_batch_is_slow() -> None:
    slow_ends = threading.Event()

    def compute(batch: pa.Table) -> None:
        if batch["n"][0].as_py() == 1:
            slow_ends.wait(SECONDS)

    run = concurrent(each(compute), rows=1, at_once=2)
    with ThreadPoolExecutor() as calls:
        slow = calls.submit(lambda: numbers(run(block(1))))
        assert numbers(run(block(2, 3, 4))) == [2, 3, 4]
        assert not slow.done()
        slow_ends.set()
        assert slow.result(SECONDS) == [1]


def test_threads_have_their_own_steps_which_later_batches_use_again() -> None:
    made: list[Any] = []
    together = threading.Barrier(2)

    def make() -> Any:
        busy = threading.Lock()

        def run(batch: pa.Table) -> Iterator[pa.Table]:
            assert busy.acquire(blocking=False), "two batches use the same steps"
            together.wait(SECONDS)
            yield batch
            busy.release()

        made.append(run)
        return run

    run = concurrent(make, rows=1, at_once=2)
    assert made == []
    assert numbers(run(block(*range(8)))) == list(range(8))
    assert len(made) == 2


def test_failure_ends_the_call_without_the_other_batches() -> None:
    computed: list[int] = []

    def compute(batch: pa.Table) -> None:
        computed.append(batch["n"][0].as_py())
        if computed == [1]:
            raise JobFailure("no")

    run = concurrent(each(compute), rows=1, at_once=1)
    with pytest.raises(JobFailure, match="no"):
        numbers(run(block(*range(1, 100))))
    assert len(computed) < 99


def test_long_call_passes_on_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent_batches, "PART_SECONDS", 0.01)
    first_is_taken = threading.Event()

    def compute(batch: pa.Table) -> None:
        if batch["n"][0].as_py() == 2:
            assert first_is_taken.wait(SECONDS)

    parts = concurrent(each(compute), rows=1, at_once=2)(block(1, 2, 3, 4))
    found = []
    while len(found) < 3:
        found += numbers(iter([next(parts)]))
    assert sorted(found) == [1, 3, 4]
    first_is_taken.set()
    assert numbers(parts) == [2]


def test_stop_does_not_wait_for_slow_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent_batches, "PART_SECONDS", 0.01)
    stopping, ends = threading.Event(), threading.Event()

    def compute(batch: pa.Table) -> None:
        if batch["n"][0].as_py() == 1:
            assert ends.wait(SECONDS)
        if batch["n"][0].as_py() == 3:
            stopping.set()

    run = concurrent(each(compute), rows=1, at_once=2, stopping=stopping)
    assert numbers(run(block(1, 2, 3, 4, 5))) == [2, 3]
    ends.set()


def test_stop_leaves_out_batches_that_have_not_begun() -> None:
    stopping = threading.Event()

    def compute(batch: pa.Table) -> None:
        if batch["n"][0].as_py() == 3:
            stopping.set()

    run = concurrent(each(compute), rows=1, at_once=1, stopping=stopping)
    assert numbers(run(block(*range(1, 10)))) == [1, 2, 3]


def test_process_ends_with_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(dataset.os, "_exit", codes.append)

    def die(_: Segment, batch: Any, stopping: threading.Event) -> Iterator[Any]:
        raise EngineDied("lost")
        yield

    stage_runner = SimpleNamespace(note_occupancy=lambda: None)
    monkeypatch.setattr(Segment, "load", lambda _: [stage_runner])
    monkeypatch.setattr(Segment, "of_block", die)
    (stage,) = stages_of(steps_of(vllm_step(maxConcurrentBatches=4)))
    errors = ErrorHandling(tolerant=True, input=Location("/none"))
    actor = dataset._actor(stage, Segment.of([stage], errors))()
    assert list(actor(encode(good(0, 0, [1])))) == []
    assert codes == [1]


def test_calls_of_the_actor_are_as_many_as_its_batches() -> None:
    (stage,) = stages_of(steps_of(vllm_step(maxConcurrentBatches=4)))
    assert concurrency_of_actors(stage)["max_concurrent_calls_per_actor"] == 4
    assert isinstance(
        concurrent_or_single(stage, each(lambda _: None), threading.Event()), ConcurrentBatches
    )


def test_other_actors_compute_one_batch_at_a_time() -> None:
    (stage,) = stages_of(steps_of(vllm_step(maxConcurrentBatches=1)))
    made = each(lambda _: None)()
    assert concurrent_or_single(stage, lambda: made, threading.Event()) is made
    assert concurrency_of_actors(stage) == {}
