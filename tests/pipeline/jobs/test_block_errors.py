"""Errors of tasks of Ray Data, and when its write tasks begin."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from ray import ObjectRef
from ray.data import DataContext
from ray.data._internal.execution import streaming_executor_state
from ray.data._internal.execution.bundle_queue import EstimateSize, RebundleQueue
from ray.data._internal.execution.bundle_queue.bundler import PendingBundleState
from ray.data._internal.execution.interfaces import BlockEntry, RefBundle
from ray.data._internal.execution.interfaces.task_context import TaskContext
from ray.data._internal.execution.operators.map_transformer import (
    BlockMapTransformFn,
    MapTransformer,
)
from ray.data._internal.output_buffer import BlockOutputBuffer, OutputBlockSizeOption
from ray.data.block import BlockMetadata
from ray.exceptions import RayTaskError, WorkerCrashedError

from batchinference.pipeline import ray_data_compat as compat
from batchinference.pipeline.errors import DeviceFailed, JobFailure
from batchinference.pipeline.execution import execution_control as control_module
from batchinference.pipeline.execution.execution_control import ExecutionControl
from batchinference.pipeline.ray_data_compat import (
    MapOperator,
    TimedBundling,
    bundle_whole_calls,
    errors_of_blocks,
    keep_blocks_of_reads,
    pass_on_when_stopping,
    prompt_waits,
    start_late_bundle,
    whole_call,
)


@pytest.fixture
def _silent() -> Iterator[None]:
    """Switch off all logging."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("_silent")
def test_errors_of_blocks_are_recorded_whatever_is_logged() -> None:
    context, errors = DataContext(), list[BaseException]()
    before, limit = streaming_executor_state.logger, context.max_errored_blocks
    error = ValueError("no")
    with errors_of_blocks(context, errors.append):
        assert context.max_errored_blocks == -1
        streaming_executor_state.logger.error("a block failed", exc_info=error)
        streaming_executor_state.logger.error("another message")
        streaming_executor_state.logger.debug("details")
    assert errors == [error]
    assert streaming_executor_state.logger is before
    assert context.max_errored_blocks == limit


def test_ended_tasks_are_noticed_while_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[tuple[int, float]]()
    monkeypatch.setattr(
        "ray.wait", lambda tasks, **given: waits.append((given["num_returns"], given["timeout"]))
    )
    with prompt_waits():
        module: Any = streaming_executor_state
        assert module.ray.ObjectRef is ObjectRef
        limit = module.WAIT_FOR_TASK_COMPLETION_TIMEOUT_S
        for tasks in (2, 200):
            module.ray.wait(["a"] * tasks, num_returns=tasks, fetch_local=False, timeout=limit)
    few, many = 2 * compat.GATHER_SECONDS, compat.MAX_GATHER_SECONDS
    assert waits == [(1, limit), (2, few), (1, limit), (200, many)]
    assert limit > many > few
    assert module.ray is compat.ray


def test_overlapping_executions_leave_the_real_ray_behind() -> None:
    first, second = prompt_waits(), prompt_waits()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    module: Any = streaming_executor_state
    assert module.ray is compat.ray


def test_error_of_a_step_ends_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    control = ExecutionControl(stop=Mock(side_effect=[ConnectionError, None]))
    control.record_later(WorkerCrashedError())
    control.check()
    control.record_later(JobFailure("first"))
    control.record_later(JobFailure("second"))
    for _ in range(3):
        control.on_step([])
    assert control.draining, "running tasks commit the rows that they have"
    assert control.stop.call_count == 2, "Ray did not answer the first time"
    with pytest.raises(JobFailure, match="first"):
        control.check()
    later = time.monotonic() + control_module.ABORT_SECONDS
    monkeypatch.setattr(control_module.time, "monotonic", lambda: later)
    with pytest.raises(JobFailure, match="first"):
        control.on_step([])


@pytest.mark.parametrize(
    ("recovers", "commits", "deaths", "outcome"),
    [
        (True, True, False, "goes on"),
        (True, False, True, "ends the pass"),
        (True, False, False, "fails"),
        (False, True, True, "fails"),
    ],
)
def test_lost_tasks(*, recovers: bool, commits: bool, deaths: bool, outcome: str) -> None:
    stops: list[None] = []
    control = ExecutionControl(
        recovers=recovers,
        has_commits=lambda: commits,
        has_deaths=lambda: deaths,
        stop=lambda: stops.append(None),
    )
    try:
        for _ in range(control_module.MAX_LOST):
            control.record(WorkerCrashedError())
    except WorkerCrashedError:
        assert outcome == "fails"
        return
    assert control.draining == (outcome == "ends the pass")
    control.on_step([])
    control.on_step([])
    assert len(stops) == control.draining


def test_fault_of_a_device_ends_the_pass_and_not_the_job() -> None:
    stops: list[None] = []
    control = ExecutionControl(has_commits=lambda: False, stop=lambda: stops.append(None))
    fault = DeviceFailed("CUDA error", "node-1")
    control.record(RayTaskError("step", "traceback", fault))
    control.record_later(fault)
    control.on_step([])
    assert control.losses == [fault, fault]
    assert len(stops) == 1
    with pytest.raises(DeviceFailed):
        ExecutionControl(recovers=False).record(fault)


def test_storage_is_asked_for_commits_until_there_are_some() -> None:
    asked: list[bool] = []

    def has_commits() -> bool:
        asked.append(True)
        return True

    control = ExecutionControl(has_commits=has_commits)
    for _ in range(control_module.MAX_LOST + 5):
        control.record(WorkerCrashedError())
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        ([(0, 4), (1, 10)], [False, True]),
        ([(0, 4), (59, 5), (60, 6)], [False, False, True]),
        ([(0, 4), (60, 5), (61, 1), (121, 2)], [False, True, False, True]),
        ([(0, 0), (100, 3)], [False, False]),
    ],
)
def test_write_task_begins_with_enough_rows_or_in_time(
    monkeypatch: pytest.MonkeyPatch, arrivals: list[tuple[float, int]], expected: list[bool]
) -> None:
    """Each arrival is the time in seconds and the rows that wait."""
    now = 0.0
    monkeypatch.setattr(compat, "time", SimpleNamespace(monotonic=lambda: now))
    bundling: Any = TimedBundling(rows=10, seconds=60.0)
    result = []
    for now, rows in arrivals:  # noqa: B007 - read by the clock
        result.append(bundling.can_build_ready_bundle(SimpleNamespace(num_rows=rows)))
    assert result == expected


def block_of(rows: int) -> RefBundle:
    """Return a block of Ray Data with this number of rows."""
    metadata = BlockMetadata(num_rows=rows, size_bytes=1, input_files=None, exec_stats=None)
    return RefBundle([BlockEntry(ObjectRef(bytes(28)), metadata)], schema=None, owns_blocks=False)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(0, 4), (59, 0), (61, 0), (130, 0)], [(61, 4)]),
        ([(0, 4), (61, 0), (62, 5), (121, 0), (123, 0)], [(61, 4), (123, 5)]),
        ([(0, 4), (1, None), (61, 0)], []),
        ([(50, 4), (99, 0), (100, 0)], [(100, 4)]),
        ([(499, 4), (501, 0), (502, 0), (503, 2)], [(501, 4), (503, 2)]),
        ([(50, 4), (100, 0), (165, 5), (226, 0)], [(100, 4), (226, 5)]),
    ],
)
def test_write_task_begins_in_time_although_no_block_arrives(
    monkeypatch: pytest.MonkeyPatch,
    events: list[tuple[float, int | None]],
    expected: list[tuple[float, int]],
) -> None:
    """The rows of a slow model do not wait for its next rows. Each event is the time in seconds and
    the rows of a block that arrives; None if the input ends, with a task for all rows. From 500
    seconds on, a node is draining."""
    now, started = 0.0, list[tuple[float, int | None]]()
    monkeypatch.setattr(compat, "time", SimpleNamespace(monotonic=lambda: now))
    draining = {"node": 1}
    monkeypatch.setattr(compat, "get_draining_nodes", lambda: draining if now > 500 else {})
    queue = RebundleQueue(TimedBundling(rows=10, seconds=60.0))
    operator = Mock(spec=MapOperator, _block_ref_bundler=queue, _metrics=Mock())
    operator._try_schedule_task = lambda bundle, strict: started.append((now, bundle.num_rows()))
    for now, rows in events:
        if rows:
            queue.add(block_of(rows))
        elif rows is None:
            queue.finalize()
            queue.get_next_with_original()
        start_late_bundle(operator, at_once=100 <= now < 110)
    assert started == expected


@pytest.mark.parametrize(("wanted", "rows"), [(whole_call(3), 3), (7, 7)])
def test_call_of_an_actor_starts_with_a_batch_although_it_gets_all_rows(
    wanted: int, rows: int
) -> None:
    queue = RebundleQueue(EstimateSize(wanted))
    bundle_whole_calls(Mock(spec=MapOperator, _block_ref_bundler=queue))
    ready = [queue._strategy.can_build_ready_bundle(PendingBundleState(n, n)) for n in range(9)]
    assert ready == [number >= rows for number in range(9)]


@pytest.mark.parametrize(("name", "sizes"), [("ReadRows", [1, 2]), ("MapBatches(a)", [3])])
def test_blocks_of_reads_are_passed_on_at_once(name: str, sizes: list[int]) -> None:
    size = OutputBlockSizeOption.of(target_max_block_size=1 << 30)
    read = BlockMapTransformFn(lambda blocks, _: blocks, output_block_size_option=size)
    transformer = MapTransformer([read])
    operator = Mock(spec=MapOperator, get_map_transformer=lambda: transformer)
    operator.name = name
    keep_blocks_of_reads(operator)
    blocks = [pa.table({"n": [1]}), pa.table({"n": [2, 3]})]
    assert [len(block) for block in read(blocks, TaskContext(0, name))] == sizes


def test_results_before_an_error_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    size, stopping = OutputBlockSizeOption.of(target_max_block_size=1 << 30), Event()
    monkeypatch.setattr(compat._map_transformer, "BlockOutputBuffer", BlockOutputBuffer)
    pass_on_when_stopping(stopping)

    def fail(blocks: Iterator[pa.Table], _: TaskContext) -> Iterator[pa.Table]:
        first, second = blocks
        yield first
        yield second
        stopping.set()
        yield second.slice(0, 0)
        raise JobFailure("no")

    run = BlockMapTransformFn(fail, output_block_size_option=size)
    blocks = [pa.table({"n": [1]}), pa.table({"n": [2, 3]})]
    done = iter(run(iter(blocks), TaskContext(0, "MapBatches(a)")))
    assert [row["n"] for row in next(done).to_pylist()] == [1, 2, 3]
    with pytest.raises(JobFailure):
        next(done)
