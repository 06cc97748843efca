"""Observes one execution of the tasks of a pass, and drains or aborts it.

Pinned to the Ray version in pyproject.toml, like `pipeline.arrow`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from batchinference.pipeline.error_attribution import root_cause
from batchinference.pipeline.errors import (
    DeviceFailed,
    JobFailure,
    NodeLost,
    OutOfMemory,
    WorkerCrashed,
)
from batchinference.pipeline.ray_compat import (
    ExecutionCallback,
    InternalQueueOperatorMixin,
    bundle_in_time,
    bundle_whole_calls,
    has_dead_actors,
    has_results,
    keep_blocks,
    start_late_bundle,
)

if TYPE_CHECKING:
    from batchinference.pipeline.ray_compat import OpState, StreamingExecutor

_OPERATOR = re.compile(r"MapBatches\((.*)\)|(Read|Write).*")


ABORT_SECONDS = 5.0
"""Seconds that the other tasks have to commit their rows after a task has failed."""
MAX_LOST = 3
"""If this many tasks are lost before any row is committed, the pass ends."""
_LOST = (WorkerCrashed, OutOfMemory, NodeLost, DeviceFailed)
"""The causes for which the rows of a task are only missing."""


MEASURED_SECONDS = 20.0
"""Seconds from the first results of a measured step to the end of its pass."""


class Failure(NamedTuple):
    """The error of a task that ends the execution, and when it was recorded, by the monotonic
    clock."""

    error: BaseException
    at: float


@dataclass
class ExecutionControl:
    """Controls one execution, from another thread."""

    recovers: bool = True
    """Whether the rows of lost tasks can be computed in the next pass."""
    has_commits: Callable[[], bool] = lambda: True
    """Returns whether rows were committed in this pass."""
    has_deaths: Callable[[], bool] = lambda: False
    """Returns whether it is known at which rows processes died in this pass."""
    stop: Callable[[], None] = lambda: None
    """Requests the processes of this pass to stop."""
    measured: str | None = None
    """The step whose number of replicas on a device is measured: the pass ends soon."""
    measured_since: float | None = None
    """When the step had its first results, by the monotonic clock."""
    draining: bool = False
    """Whether waiting work is dropped. Running tasks commit the results that they have."""
    given_up: bool = False
    """Whether the execution is aborted from within. Shutting down Ray while it runs would end the
    whole process."""
    losses: list[JobFailure] = field(default_factory=list)
    """Why tasks, or calls of actors, were lost in this pass."""
    failure: Failure | None = None
    stage: str | None = None
    """The last stage that had work at the last scheduling step. If the job makes no progress, it
    waits for this stage; earlier stages may only be waiting for it."""

    def drain(self) -> None:
        """Drop waiting work, and request the processes of this pass to stop."""
        if not self.draining:
            self.draining = True
            self.stop()

    def record(self, error: BaseException) -> None:
        """Record the error of a task that was only lost: its process died again and again, or its
        node was lost, or its device failed. Raises the error if the execution must end with it.

        The pass ends after the fault of a device, so that the next one can leave out its node. It
        also ends if MAX_LOST tasks are lost before any row is committed, and the next one isolates
        the rows. If none are known, there is no next pass."""
        cause = root_cause(error)
        if not (self.recovers and isinstance(cause, _LOST)):
            raise error
        self.losses.append(cause)
        if isinstance(cause, DeviceFailed):
            self.drain()
        elif not (len(self.losses) < MAX_LOST or self.draining or self._known_commits()):
            if not self.has_deaths():
                raise error
            self.drain()

    def _known_commits(self) -> bool:
        """Return whether rows were committed in this pass. Once they were, storage is not asked."""
        known = self.has_commits()
        if known:
            self.has_commits = lambda: True
        return known

    def record_later(self, error: BaseException) -> None:
        """Record the error of a task of Ray Data, which goes on. What `record` raises is raised
        after the other tasks had time to commit their rows."""
        try:
            self.record(error)
        except BaseException as failure:  # noqa: BLE001 - `check` raises it
            self.failure = self.failure or Failure(failure, time.monotonic())

    def check(self) -> None:
        """Raise the failure of a task, if any."""
        if self.failure is not None:
            raise self.failure.error

    def on_step(self, busy: Sequence[str]) -> None:
        """Update the stage, and end the execution if that is due. `busy` are the stages that have
        work. Raises JobFailure if the execution is given up."""
        if self.given_up:
            raise JobFailure("given up")
        if self.failure is not None:
            if time.monotonic() - self.failure.at >= ABORT_SECONDS:
                self.check()
            self.drain()
        self.stage = busy[-1] if busy else self.stage
        since = self.measured_since
        if since is not None and time.monotonic() - since >= MEASURED_SECONDS:
            self.drain()


@dataclass(frozen=True)
class ObservedExecution:
    """An execution, and what is special about its operators."""

    control: ExecutionControl
    read: str = "read"
    """The names of the stages that run in read tasks."""
    write: str = "write"
    """The names of the stages that run in write tasks."""
    sized_reads: bool = False
    """Whether the tasks that read make blocks of the right size."""
    rows: int = 1
    """The rows that are enough for a task that commits."""
    seconds: float = 60.0
    """The seconds after which fewer rows are enough."""


class ControlCallback(ExecutionCallback):
    """Connects an execution of Ray Data to its ExecutionControl. Workers import this class by name,
    and Ray makes its instances."""

    execution: ClassVar[ObservedExecution] = ObservedExecution(ExecutionControl())
    """The newest execution."""

    def __init__(self) -> None:
        self._execution = ControlCallback.execution

    def before_execution_starts(self, executor: StreamingExecutor) -> None:
        operators, observed = [*(executor._topology or {})], self._execution
        for operator in operators:
            keep_blocks(operator, of_reads=observed.sized_reads)
            bundle_whole_calls(operator)
        *_, last = operators
        bundle_in_time(last, observed.rows, observed.seconds)

    def on_execution_step(self, executor: StreamingExecutor) -> None:
        states = list((executor._topology or {}).values())
        observed = self._execution
        if observed.control.measured and observed.control.measured_since is None:
            done = {_name(state.op.name, "", "") for state in states if has_results(state.op)}
            if observed.control.measured in done:
                observed.control.measured_since = time.monotonic()
        observed.control.on_step(busy_stages(states, observed.read, observed.write))
        if observed.control.draining or any(has_dead_actors(state.op) for state in states):
            _drop_waiting(states)  # the next pass has new actors
        for state in states[-1:]:
            start_late_bundle(state.op, at_once=observed.control.draining)


def busy_stages(states: Sequence[OpState], read: str, write: str) -> list[str]:
    """Return the names of the stages that have work, in order. Rows that wait for a batch to fill
    do not count."""
    busy = (state for state in states if state.op.num_active_tasks() or state.has_pending_bundles())
    return [name for state in busy if (name := _name(state.op.name, read, write))]


def _drop_waiting(states: Sequence[OpState]) -> None:
    """Clear the input queues of all operators except the last one, which writes."""
    for state in states[:-1]:
        for queue in state.input_queues:
            queue.clear()
        if isinstance(state.op, InternalQueueOperatorMixin):
            state.op.clear_internal_input_queue()


def _name(operator: str, read: str, write: str) -> str:
    """Return the name in the job of an operator of Ray Data, which may be several fused operators.

    The name is empty if the operator is unknown."""
    found = filter(None, map(_OPERATOR.fullmatch, operator.split("->")))
    return ", ".join(match[1] or {"Read": read, "Write": write}[match[2]] for match in found)
