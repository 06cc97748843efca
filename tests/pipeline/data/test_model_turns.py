"""Threads that share a model, and how busy it is."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from batchinference.pipeline.execution.block_codec import decode, encode
from batchinference.pipeline.execution.concurrent_batches import (
    MIN_CALLS,
    MODEL_CALLS,
    concurrency_of_actors,
)
from batchinference.pipeline.execution.dataset import BlockCalls
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.model_turns import TURNS, Occupancy, Turns, computing
from batchinference.pipeline.runtimes.device import to_device
from batchinference.pipeline.steps import model as model_steps
from batchinference.pipeline.storage.location import Location
from batchinference.plan.stages import stages_of
from support.documents.minimal import model_step, python_step
from support.documents.parsed import steps_of
from support.documents.vllm_models import vllm_step
from support.outputs.batches import errors_of, good, rows_of

SECONDS = 10
BATCHES = 8


class Model:
    """A model that computes a batch only once another one has been prepared, if there is another
    one. It fails for negative numbers, and memory runs out with more than two rows."""

    def __init__(self, batches: int) -> None:
        self._changed = threading.Condition()
        self._batches, self._prepared, self._computed = batches, 0, 0
        self.most_prepared = 0
        self._alone = threading.Lock()

    def __call__(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        (values,) = inputs.values()
        with self._changed:
            self._prepared += 1
            self.most_prepared = max(self.most_prepared, self._prepared - self._computed)
            self._changed.notify_all()
        with computing():
            assert self._alone.acquire(blocking=False), "two batches are computed at once"
            with self._changed:
                assert self._changed.wait_for(self._has_next, SECONDS), "nothing is prepared"
                self._computed += 1
            self._alone.release()
        return values * 2

    def _has_next(self) -> bool:
        return self._prepared > min(self._computed + 1, self._batches - 1)


class Failing:
    """A model that fails for negative numbers, and whose memory suffices for two rows."""

    def __call__(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        (values,) = inputs.values()
        with computing():
            if len(values) > 2:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            if (values < 0).any():
                raise ValueError("negative")
        return values * 2


Run = Callable[[list[pa.Table]], list[pa.Table]]
STEP = model_step(batchSize=4)
STEP["model"] = {
    "runtime": "torch",
    "factory": "own:make",
    "inputs": {"n": "n"},
    "output": "doubled",
}


@pytest.fixture
def run_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Run]:
    """Return what makes a function that runs blocks through an actor of a pool with a model."""
    loads: list[Any] = []

    def run_with(model: Any) -> Run:
        monkeypatch.setattr(model_steps, "load_runtime", lambda *_: loads.append(0) or model)
        stages = stages_of(steps_of(STEP))
        errors = ErrorHandling(tolerant=True, input=Location(f"/{uuid.uuid4().hex}"))
        segment = replace(Segment.of(stages, errors), concurrent=True)
        calls = BlockCalls("embed", segment, threading.Event())

        def run(blocks: list[pa.Table]) -> list[pa.Table]:
            segment.load()
            with ThreadPoolExecutor(MODEL_CALLS) as threads:
                results = list(threads.map(lambda block: list(calls(block)), blocks))
            assert loads == [0], "the model is loaded once"
            return [block for (block,) in results]

        return run

    return run_with


def test_next_batch_is_prepared_while_the_model_computes(run_with: Callable[[Any], Run]) -> None:
    model = Model(BATCHES)
    blocks = [encode(good(0, 2 * n, pa.table({"n": [2 * n, 2 * n + 1]}))) for n in range(BATCHES)]
    results = [decode(block) for block in run_with(model)(blocks)]
    pairs = [(row, values["doubled"]) for result in results for row, values in rows_of(result)]
    assert pairs == [(row, 2 * row) for row in range(2 * BATCHES)]
    assert model.most_prepared == 2


def test_each_thread_of_an_actor_uses_the_cpus_of_its_replica(
    run_with: Callable[[Any], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited: list[tuple[int, int]] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    limit = lambda threads: limited.append((threading.get_ident(), threads))  # noqa: E731
    monkeypatch.setattr(torch, "set_num_threads", limit)
    run_with(Model(BATCHES))([encode(good(0, n, pa.table({"n": [n]}))) for n in range(BATCHES)])
    assert {threads for _, threads in limited} == {3}
    assert len(limited) == len(dict(limited)) >= 2


def test_failed_rows_and_lack_of_memory_are_isolated_in_each_thread(
    run_with: Callable[[Any], Run],
) -> None:
    numbers = [[n, -1 if n % 3 else 1, 7, 8] for n in range(BATCHES)]
    blocks = [encode(good(0, 4 * n, pa.table({"n": row}))) for n, row in enumerate(numbers)]
    for row, block in zip(numbers, run_with(Failing())(blocks), strict=True):
        doubleds = [values["doubled"] for _, values in rows_of(decode(block))]
        assert doubleds == [2 * value for value in row if value >= 0]
        assert len(errors_of(decode(block))) == sum(value < 0 for value in row)


def test_batch_of_a_thread_that_raises_does_not_block_others() -> None:
    turns = Turns()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"), turns.preparing(), turns.computing():
            raise ValueError("no")
    with turns.preparing(), turns.computing(), turns.computing():
        assert turns.waited_seconds < SECONDS


def test_model_outside_of_a_step_computes_without_turns() -> None:
    with computing(), computing():
        assert TURNS._preparing.acquire(blocking=False)
        TURNS._preparing.release()


@pytest.mark.parametrize(
    ("step", "calls"),
    [
        (STEP, MODEL_CALLS),
        (model_step(), MODEL_CALLS),
        (python_step(), 1),
        (vllm_step(), MIN_CALLS),
    ],
)
def test_calls_of_an_actor(step: dict[str, Any], calls: int) -> None:
    (stage,) = stages_of(steps_of(step))
    assert concurrency_of_actors(stage).get("max_concurrent_calls_per_actor", 1) == calls


class TestOccupancy:
    def of(self, *steps: tuple[str, int]) -> dict[str, float]:
        """Return the seconds of a process that does each of these for some seconds."""
        now = [0.0]
        occupancy = Occupancy(lambda: now[0])

        def spend(seconds: int) -> Iterator[int]:
            now[0] += seconds
            yield 0

        for what, seconds in steps:
            if what in ("computing", "passing_on"):
                with getattr(occupancy, what)():
                    now[0] += seconds
            elif what == "working":
                list(occupancy.working(spend(seconds)))
            else:
                now[0] += seconds
        return occupancy.take_seconds()

    @pytest.mark.parametrize(
        ("steps", "expected"),
        [
            ([("nothing", 5), ("computing", 2)], (2, 0, 0)),
            ([("computing", 2), ("nothing", 3), ("computing", 1)], (3, 3, 0)),
            ([("computing", 2), ("passing_on", 3), ("nothing", 4), ("computing", 1)], (3, 4, 3)),
            ([("computing", 2), ("working", 3), ("computing", 1)], (3, 3, 0)),
            ([("working", 3), ("passing_on", 3)], (0, 0, 0)),
        ],
    )
    def test_time_is_divided(
        self, steps: list[tuple[str, int]], expected: tuple[int, int, int]
    ) -> None:
        assert tuple(self.of(*steps).values()) == expected

    def test_model_is_busy_while_other_threads_wait(self) -> None:
        now = [0.0]
        occupancy = Occupancy(lambda: now[0])
        with occupancy.computing():
            with occupancy.passing_on():
                now[0] = 2.0
                assert next(occupancy.working(iter([1]))) == 1
            now[0] = 3.0
        with occupancy.passing_on():
            rows = occupancy.working(iter([0, 1]))
            next(rows)
            now[0] = 7.0
        assert occupancy.take_seconds() == {
            "compute_seconds": 3.0,
            "wait_seconds": 0.0,
            "blocked_seconds": 4.0,
        }
        assert set(occupancy.take_seconds().values()) == {0.0}


def test_tensor_is_copied_from_pinned_memory_beside_the_computations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a device that only records what it is asked for."""
    done: list[str] = []

    class Stream:
        def __init__(self, *_: Any) -> None:
            pass

        def synchronize(self) -> None:
            done.append("synchronize")

        def __enter__(self) -> None:
            done.append("begin")

        def __exit__(self, *_: Any) -> None:
            done.append("end")

    class Tensor:
        def to(self, where: Any, *, non_blocking: bool) -> Tensor:
            done.append(f"copy to {where}, {non_blocking}")
            return self

        def record_stream(self, stream: Any) -> None:
            done.append(f"used by {stream}")

    cuda = SimpleNamespace(
        Stream=Stream, stream=lambda stream: stream, current_stream=lambda _: "the model"
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    pinned: list[bool] = []

    def tensor(_: Any, *, pin_memory: bool) -> Tensor:
        pinned.append(pin_memory)
        return Tensor()

    monkeypatch.setattr(torch, "tensor", tensor)
    assert isinstance(to_device(np.zeros(3), torch.device("cuda:0")), Tensor)
    assert pinned == [True]
    copied = "copy to cuda:0, True"
    assert done == ["begin", copied, "end", "synchronize", "used by the model"]


def test_tensor_on_the_cpu_is_a_copy() -> None:
    values = np.zeros(3)
    to_device(values, torch.device("cpu"))[0] = 1
    assert values[0] == 0
