"""Batches of one actor that are computed at the same time."""

from __future__ import annotations

import asyncio
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
    MAX_CALLS,
    MIN_CALLS,
    SUSPECTED_BATCHES,
    ConcurrentBatches,
    concurrency_of_actors,
)
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.rows_in_flight import RowsInFlight, Unanswered, answers_of
from batchinference.pipeline.storage.location import Location
from batchinference.plan.stages import stages_of
from support.documents.minimal import python_step
from support.documents.parsed import steps_of
from support.documents.vllm_models import vllm_step
from support.outputs.batches import good

SECONDS = 30


def block(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers})


def numbers(tables: Iterator[pa.Table]) -> list[int]:
    return [number for table in tables for number in table["n"].to_pylist()]


def concurrent(
    run: Any,
    rows: int,
    wanted: int,
    stopping: threading.Event | None = None,
    in_flight: RowsInFlight | None = None,
) -> ConcurrentBatches:
    """Return what computes batches of some rows, while too few rows are in flight."""
    (stage,) = stages_of(steps_of(vllm_step() | {"batchSize": rows}))
    in_flight = in_flight or RowsInFlight()
    in_flight.wanted = wanted
    return ConcurrentBatches(stage, run, stopping or threading.Event(), 0.01, in_flight)


def each(compute: Callable[[pa.Table], Any]) -> Any:
    """Return a function that yields each batch after `compute`."""

    def run(batch: pa.Table) -> Iterator[pa.Table]:
        compute(batch)
        yield batch

    return run


def test_batches_of_one_block_are_computed_at_the_same_time() -> None:
    together = threading.Barrier(3)
    run = concurrent(each(lambda _: together.wait(SECONDS)), rows=2, wanted=5)
    assert numbers(run(block(1, 2, 3, 4, 5))) == [1, 2, 3, 4, 5]


def test_next_block_is_computed_while_one_batch_is_slow() -> None:
    slow_ends = threading.Event()

    def compute(batch: pa.Table) -> None:
        if batch["n"][0].as_py() == 1:
            slow_ends.wait(SECONDS)

    run = concurrent(each(compute), rows=1, wanted=2)
    with ThreadPoolExecutor() as calls:
        slow = calls.submit(lambda: numbers(run(block(1))))
        assert numbers(run(block(2, 3, 4))) == [2, 3, 4]
        assert not slow.done()
        slow_ends.set()
        assert slow.result(SECONDS) == [1]


def test_failure_ends_the_call_without_the_other_batches() -> None:
    computed: list[int] = []

    def compute(batch: pa.Table) -> None:
        computed.append(batch["n"][0].as_py())
        if computed == [1]:
            raise JobFailure("no")

    run = concurrent(each(compute), rows=1, wanted=1)
    with pytest.raises(JobFailure, match="no"):
        numbers(run(block(*range(1, 100))))
    assert len(computed) < 99


def test_long_call_passes_on_what_is_done() -> None:
    first_is_taken = threading.Event()

    def compute(batch: pa.Table) -> None:
        if batch["n"][0].as_py() == 2:
            assert first_is_taken.wait(SECONDS)

    parts = concurrent(each(compute), rows=1, wanted=2)(block(1, 2, 3, 4))
    result = []
    while len(result) < 3:
        result += numbers(iter([next(parts)]))
    assert sorted(result) == [1, 3, 4]
    first_is_taken.set()
    assert numbers(parts) == [2]


def test_stop_does_not_wait_for_slow_batches() -> None:
    stopping, ends = threading.Event(), threading.Event()

    def compute(batch: pa.Table) -> None:
        if batch["n"][0].as_py() == 1:
            assert ends.wait(SECONDS)
        if batch["n"][0].as_py() == 3:
            stopping.set()

    run = concurrent(each(compute), rows=1, wanted=2, stopping=stopping)
    assert numbers(run(block(1, 2, 3, 4, 5))) == [2, 3]
    ends.set()


def test_stop_passes_on_the_answered_rows_of_a_batch() -> None:
    stopping, in_flight = threading.Event(), RowsInFlight()

    def run(batch: pa.Table) -> Iterator[pa.Table]:
        given_up = in_flight.given_up
        stopping.set()
        given_up.result(SECONDS)
        yield batch.slice(0, 1)

    batches = concurrent(run, rows=2, wanted=1, stopping=stopping, in_flight=in_flight)
    assert numbers(batches(block(1, 2, 3, 4))) == [1]


def test_failure_passes_on_the_answered_rows_of_all_batches() -> None:
    in_flight, begun = RowsInFlight(), threading.Barrier(2)

    def run(batch: pa.Table) -> Iterator[pa.Table]:
        given_up, rows = in_flight.given_up, batch["n"].to_pylist()
        yield batch.slice(0, 1)
        begun.wait(SECONDS)
        if rows == [1, 2]:
            raise JobFailure("no")
        given_up.result(SECONDS)
        yield batch.slice(1)

    stopping = threading.Event()
    batches = concurrent(run, rows=2, wanted=3, stopping=stopping, in_flight=in_flight)
    done = list[int]()
    parts = batches(block(1, 2, 3, 4, 5, 6))
    with pytest.raises(JobFailure, match="no"):
        done.extend(number for part in parts for number in part["n"].to_pylist())
    assert done == [1, 3, 4]
    assert numbers(batches(block(7, 8))) == [], "no further batch begins"


def test_dead_engine_ends_a_call_at_once() -> None:
    stopping, ends = threading.Event(), threading.Event()

    def compute(batch: pa.Table) -> None:
        if batch["n"][0].as_py() == 2:
            ends.wait(SECONDS)
        else:
            raise EngineDied("lost")

    run = concurrent(each(compute), rows=1, wanted=2, stopping=stopping)
    with pytest.raises(EngineDied, match="lost"):
        numbers(run(block(1, 2)))
    ends.set()
    assert not stopping.is_set(), "Ray starts a new process, which computes the rows"


def test_question_without_an_answer_is_unanswered_when_its_batch_is_given_up() -> None:
    in_flight, asked = RowsInFlight(), list[int]()

    async def ask(number: int) -> int:
        asked.append(number)
        if number == 2:
            in_flight.give_up()
        if number >= 2:
            await asyncio.sleep(SECONDS)
        return -number

    with in_flight.batch(3):
        given_up = in_flight.given_up
        first, *others = asyncio.run(answers_of(ask, [1, 2, 3], given_up))
        (later,) = asyncio.run(answers_of(ask, [4], given_up))
    assert first == -1
    assert [type(answer) for answer in (*others, later)] == [Unanswered] * 3
    assert asked == [1, 2, 3], "nothing is asked afterwards"


def test_error_that_ends_the_job_keeps_the_answers_of_its_batch() -> None:
    in_flight, failure = RowsInFlight(), JobFailure("no")

    async def ask(number: int) -> int:
        if number == 2:
            raise Unanswered(failure)
        if number == 3:
            await asyncio.sleep(SECONDS)
        return -number

    with in_flight.batch(3):
        given_up = in_flight.given_up
        first, *others = asyncio.run(answers_of(ask, [1, 2, 3], given_up))
        (later,) = asyncio.run(answers_of(ask, [1], given_up))
    assert first == -1
    assert [one.cause for one in (*others, later)] == [failure] * 3
    with in_flight.batch(1):
        assert asyncio.run(answers_of(ask, [1], in_flight.given_up)) == [-1]


def test_process_ends_with_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(dataset.os, "_exit", codes.append)

    def die(_: Segment, batch: Any, stopping: threading.Event) -> Iterator[Any]:
        raise EngineDied("lost")
        yield

    stage_runner = SimpleNamespace(note_occupancy=lambda: None)
    monkeypatch.setattr(Segment, "load", lambda _: stage_runner)
    monkeypatch.setattr(Segment, "of_block", die)
    (stage,) = stages_of(steps_of(vllm_step()))
    errors = ErrorHandling(tolerant=True, input=Location("/none"))
    actor = dataset._actor(stage, Segment.of([stage], errors))()
    assert list(actor(encode(good(0, 0, [1])))) == []
    assert codes == [1]


def test_error_of_a_call_stops_the_other_calls_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopping = list[threading.Event]()

    def fail(_: Segment, batch: Any, given: threading.Event) -> Iterator[Any]:
        stopping.append(given)
        raise JobFailure("no")
        yield

    monkeypatch.setattr(dataset, "pass_on_when_stopping", stopping.append)
    monkeypatch.setattr(Segment, "load", lambda _: SimpleNamespace(note_occupancy=lambda: None))
    monkeypatch.setattr(Segment, "of_block", fail)
    (stage,) = stages_of(steps_of(python_step()))
    errors = ErrorHandling(tolerant=True, input=Location("/none"))
    call = dataset._actor(stage, Segment.of([stage], errors))()(encode(good(0, 0, [1])))
    assert next(call).num_rows == 0, "Ray Data passes on the earlier results of the call"
    with pytest.raises(JobFailure, match="no"):
        next(call)
    assert stopping[0] is stopping[1]
    assert stopping[0].is_set()


@pytest.mark.parametrize(("blocks", "calls"), [(1, MIN_CALLS), (40, 40), (1000, MAX_CALLS)])
def test_actor_has_the_blocks_that_it_may_take_in_calls(blocks: int, calls: int) -> None:
    (stage,) = stages_of(steps_of(vllm_step()))
    assert concurrency_of_actors(stage, blocks)["max_concurrent_calls_per_actor"] == calls


def test_other_actors_compute_one_batch_at_a_time() -> None:
    (stage,) = stages_of(steps_of(python_step()))
    assert concurrency_of_actors(stage) == {}


def test_slow_row_of_a_batch_keeps_no_rows_of_later_batches_away() -> None:
    slow, slow_ends, in_flight = threading.Semaphore(0), threading.Event(), RowsInFlight()

    def compute(batch: pa.Table) -> None:
        answer = in_flight.expect(batch.num_rows)
        for _ in range(batch.num_rows - 1):
            answer()
        slow.release()
        assert slow_ends.wait(SECONDS)

    run = concurrent(each(compute), rows=4, wanted=5, in_flight=in_flight)
    with ThreadPoolExecutor() as calls:
        done = calls.submit(lambda: numbers(run(block(*range(100)))))
        assert all(slow.acquire(timeout=SECONDS) for _ in range(5)), "each row is of another batch"
        slow_ends.set()
        assert done.result(SECONDS) == list(range(100))


def test_no_batch_begins_while_enough_rows_are_in_flight() -> None:
    ends, begun, limit = threading.Event(), threading.Semaphore(0), list[int]()
    in_flight = RowsInFlight()

    def compute(_: pa.Table) -> None:
        limit.append(in_flight.rows)
        begun.release()
        assert ends.wait(SECONDS)

    run = concurrent(each(compute), rows=4, wanted=5, in_flight=in_flight)
    with ThreadPoolExecutor() as calls:
        done = calls.submit(lambda: numbers(run(block(*range(100)))))
        assert all(begun.acquire(timeout=SECONDS) for _ in range(2))
        ends.set()
        assert done.result(SECONDS) == list(range(100))
    assert max(limit) == 8


def test_few_rows_are_suspects_if_a_process_dies_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent_batches, "replaces_dead_process", lambda: True)
    together, rows = threading.Barrier(SUSPECTED_BATCHES), 2 * SUSPECTED_BATCHES
    run = concurrent(each(lambda _: together.wait(SECONDS)), rows=1, wanted=rows)
    assert sorted(numbers(run(block(*range(rows))))) == list(range(rows))
    assert len(run._threads._threads) == SUSPECTED_BATCHES


def test_rows_without_an_answer_are_counted() -> None:
    counted = RowsInFlight()
    counted.begin(4)
    with counted.batch(4):
        answer = counted.expect(3)
        assert counted.rows == 3, "a row that needs no answer is not in flight"
        answer()
        assert counted.rows == 2
        again = counted.expect(3)
        again()
        again()
        again()
        assert counted.rows == 0, "a row that is asked twice ends once"
    counted.begin(2)
    with counted.batch(2):
        assert counted.rows == 2
    assert counted.rows == 0
    counted.expect(5)()
    assert counted.rows == 0, "rows that are computed without batches are not counted"
