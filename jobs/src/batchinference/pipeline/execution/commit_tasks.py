"""Runs a job without actor pools as one segment. Each Ray task reads, computes and commits a part
of the input, all in one process. Ray runs as many worker processes as tasks fit on its CPUs. Each
process loads the models once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import ray

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.chunk_commits import ChunkCommits, CommitRules
from batchinference.pipeline.execution.execution_control import ABORT_SECONDS
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.worker_stop import StopRequest, until_stopped
from batchinference.pipeline.input import ReadRows
from batchinference.pipeline.ray_compat import retries_of_this_task
from batchinference.pipeline.row_batch import READ_STEP
from batchinference.pipeline.step_time import StepTime

if TYPE_CHECKING:
    from batchinference.pipeline.execution.execution_control import ExecutionControl

POLL_SECONDS = 0.5
"""Maximum seconds until the driver notices that it must stop."""
GIVEN_UP_SECONDS = 5.0
"""Seconds to wait for the tasks of an execution that is given up, as after a second signal."""


@dataclass(frozen=True)
class CommitTask:
    """A task that reads a part of the input, runs all steps and commits the results."""

    number: int
    read: ReadRows
    segment: Segment
    committer: Committer
    rules: CommitRules
    stop: StopRequest

    def __call__(self, *, retried: bool) -> None:
        """Run the task. `retried` says whether an earlier execution may have committed rows."""
        if self.stop.is_sent():
            return
        read_time = StepTime(READ_STEP)

        def notes() -> Iterator[tuple[str, str]]:
            yield from read_time.take_rest()
            yield from self.segment.take_notes()

        with (
            self.stop.stop_event() as stopping,
            ChunkCommits(self.committer, self.rules, self.number, notes) as commits,
        ):
            commits.add_results(
                read_time.of(self.read(), lambda batch: len(batch.input_ids)),
                lambda rows: until_stopped(self.segment.of_read(rows, stopping), stopping),
                retried=retried,
                isolated=self.segment.replaces_process(),
            )


@dataclass(frozen=True)
class CommitTasks:
    """Runs tasks on Ray. `at_once` gets the seconds since the start, and returns how many tasks may
    run or wait in Ray. Read tasks of Ray Data are not used. They start later, are all submitted at
    once, and do not say why a task was lost."""

    tasks: list[CommitTask]
    arguments: dict[str, Any]
    at_once: Callable[[float], int]
    control: ExecutionControl

    def run(self) -> None:
        """Run all tasks to their end. Raises the first failure. Rows of lost tasks remain missing.
        If the job is draining, no further task starts, and running tasks commit their complete
        rows."""
        waiting = iter(self.tasks)
        running: set[Any] = set()
        began = time.monotonic()
        try:
            while not self.control.draining:
                room = max(0, self.at_once(time.monotonic() - began) - len(running))
                running |= {self._start(task) for task in itertools.islice(waiting, room)}
                if not running:
                    return
                running = self._wait_for_tasks(running)
            while running:
                self.control.drain()  # again, because Ray may not have answered
                running = self._wait_for_tasks(running)
        except BaseException:
            self.control.drain()
            seconds = GIVEN_UP_SECONDS if self.control.given_up else ABORT_SECONDS
            # tasks that are still running after this time are killed together with the driver
            ray.wait(list(running), num_returns=len(running), timeout=seconds)
            raise

    @cached_property
    def _function(self) -> Any:
        return ray.remote(**self.arguments)(_run)

    def _start(self, task: CommitTask) -> Any:
        return self._function.options(name=self.control.stage).remote(task)

    def _wait_for_tasks(self, running: set[Any]) -> set[Any]:
        """Wait up to POLL_SECONDS for tasks, and return those that still run. Raises the failure of
        a task, and JobFailure if the execution was given up."""
        if self.control.given_up:
            raise JobFailure("given up")
        done, remaining = ray.wait(list(running), timeout=POLL_SECONDS)
        for reference in done:
            try:
                ray.get(reference)
            except Exception as error:  # noqa: BLE001 - raised unless the task was only lost
                self.control.record(error)
        return set(remaining)


def _run(task: CommitTask) -> None:
    task(retried=retries_of_this_task() > 0)
