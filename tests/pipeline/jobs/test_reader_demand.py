"""The number of read tasks follows the demand of the pool. Ray Data decides about it; these tests
show that it does so for the operators of a job, and that rows are committed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ray.data import DataContext, ExecutionOptions, ExecutionResources

from batchinference.pipeline.execution.dataset_control import ControlCallback
from support.documents.minimal import Document
from support.jobs.gated import HOLD
from support.jobs.on_ray import job_document, run_job, write_lines

pytestmark = pytest.mark.usefixtures("ray")

FILES, ROWS, ROW_BYTES = 20, 16, 1 << 20
MEMORY = 80 << 20
"""A quarter of the bytes of all rows."""
UNCHANGED_STEPS = 30
"""If nothing has changed in so many scheduling steps, nothing more is read."""


class Busy(NamedTuple):
    """The running tasks of each operator, and the read tasks that have not begun."""

    unread: int
    reads: int
    pool: int
    writes: int


Observe = Callable[[Callable[[Busy], object]], None]


@pytest.fixture
def observe(monkeypatch: pytest.MonkeyPatch) -> Observe:
    """Return a function that sets what is called after each scheduling step."""
    original = ControlCallback.on_execution_step

    def set_observer(observer: Callable[[Busy], object]) -> None:
        def step(self: ControlCallback, executor: Any) -> None:
            original(self, executor)
            _, read, *between, write = (executor._topology or {}).values()
            active = [state.op.num_active_tasks() for state in (read, between[-1], write)]
            observer(Busy(read.total_enqueued_input_blocks(), *active))

        monkeypatch.setattr(ControlCallback, "on_execution_step", step)

    return set_observer


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Limit the object store that the operators may use together."""
    context = DataContext.get_current()
    before = context.execution_options
    limits = ExecutionResources(object_store_memory=MEMORY)
    context.execution_options = ExecutionOptions(resource_limits=limits)
    yield
    context.execution_options = before


def fed_pool(tmp_path: Path, first: Document, pool: Document) -> Document:
    """Return a job whose read tasks run the step `first`, which feeds a pool of one replica."""
    source = write_lines(tmp_path / "in", {f"{n:02}.txt": [HOLD] * ROWS for n in range(FILES)})
    own = {"replicas": {"max": 1}, "resources": {"cpu": 0.1}, "batchSize": ROWS}
    slim = {"name": "slim", "selectColumns": ["text"]}
    steps = [{"name": "first", "python": first}, {"name": "pool", "python": pool, **own}, slim]
    return job_document("job", source, tmp_path / "out", steps=steps)


def test_readers_get_all_cpus_while_the_pool_waits(tmp_path: Path, observe: Observe) -> None:
    steps: list[Busy] = []
    observe(steps.append)
    (tmp_path / "here").mkdir()
    together = {"directory": str(tmp_path / "here"), "tasks": 2}
    first = {"callable": "own_code:require_concurrent_tasks", "callArgs": together}
    run = run_job(fed_pool(tmp_path, first, {"callable": "own_code:Suffix"}))
    assert run.counts == (FILES * ROWS, FILES * ROWS, 0, 0), run.report.message
    assert any(busy.writes for busy in steps if busy.unread and busy.reads == 2)


def test_readers_pause_while_the_pool_has_enough(
    tmp_path: Path, observe: Observe, little_memory: None
) -> None:
    steps, unread = list[Busy](), list[int]()
    file = tmp_path / "gate"

    def open_when_unchanged(busy: Busy) -> None:
        steps.append(busy)
        if busy.pool and len(steps) > UNCHANGED_STEPS and {*steps[-UNCHANGED_STEPS:]} == {busy}:
            unread.append(busy.unread)
            file.touch()

    observe(open_when_unchanged)
    first = {"callable": "own_code:add_bytes", "callArgs": {"count": ROW_BYTES}}
    pool = {"callable": "own_code:WaitFor", "callArgs": {"file": str(file)}}
    run = run_job(fed_pool(tmp_path, first, pool))
    assert run.counts == (FILES * ROWS, FILES * ROWS, 0, 0), run.report.message
    assert unread[0] > FILES / 2
