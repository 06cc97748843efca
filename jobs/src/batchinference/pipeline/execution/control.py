"""Observes a Ray Data execution at each scheduling step, and drains or aborts it.

Pinned to the Ray version in pyproject.toml, like `pipeline.arrow`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchinference.pipeline.error_attribution import root_cause
from batchinference.pipeline.errors import JobFailure, NodeLost, OutOfMemory, WorkerCrashed
from batchinference.pipeline.ray_compat import (
    ExecutionCallback,
    InternalQueueOperatorMixin,
    bundle_in_time,
    has_dead_actors,
)

if TYPE_CHECKING:
    from batchinference.pipeline.ray_compat import OpState, StreamingExecutor

_OPERATOR = re.compile(r"MapBatches\((.*)\)|(Read|Write).*")


ABORT_SECONDS = 5.0
"""Seconds that the other tasks have to commit their rows after a task has failed."""
MAX_LOST = 3
"""If this many tasks are lost before any row is committed, the pass ends."""


@dataclass
class ExecutionControl:
    """Controls one execution, from another thread."""

    draining: bool = False
    """Whether waiting work is dropped. Running tasks finish, and their results are written."""
    given_up: bool = False
    """Whether the execution is aborted from within. Shutting down Ray while it runs would end the
    whole process."""
    recovers: bool = True
    """Whether the rows of lost tasks can be computed in the next pass."""
    has_commits: Callable[[], bool] = lambda: True
    """Returns whether rows were committed in this pass."""
    has_deaths: Callable[[], bool] = lambda: False
    """Returns whether it is known at which rows processes died in this pass."""
    stop: Callable[[], None] = lambda: None
    """Requests the processes of this pass to stop."""
    stopped: bool = False
    """Whether `stop` was called."""
    rows_per_commit: int = 1
    """The number of rows that are enough for a task that commits."""
    commit_seconds: float = 60.0
    """The seconds after which a task commits fewer rows."""
    committed: bool = False
    """Whether rows are known to be committed in this pass."""
    lost: int = 0
    """The number of lost tasks and calls of actors in this pass."""
    death: BaseException | None = None
    """The error of the last of them."""
    failure: BaseException | None = None
    """The failure of a task that ends the execution."""
    failed_at: float | None = None
    """When this was recorded, by the monotonic clock."""
    ends: tuple[str, str] = ("read", "write")
    """The names of the stages that the tasks that read, and the tasks that write, run."""
    stage: str | None = None
    """The last stage that had work at the last scheduling step. If the job makes no progress, it
    waits for this stage; earlier stages may only be waiting for it."""

    def record_lost(self, death: BaseException) -> None:
        """Record a task whose process died again and again, or whose node was lost.

        If MAX_LOST tasks are lost before any row is committed, the pass ends, and the next one
        isolates the rows. Raises `death` if none are known, or if there can be no other pass."""
        self.lost, self.death = self.lost + 1, death
        if not self.recovers:
            raise death
        if self.lost < MAX_LOST or self.draining or self._known_commits():
            return
        if not self.has_deaths():
            raise death
        self.draining = True

    def _known_commits(self) -> bool:
        """Return whether rows were committed in this pass. Once they were, storage is not asked."""
        self.committed = self.committed or self.has_commits()
        return self.committed

    def record_error(self, error: BaseException) -> None:
        """Record an error of a task of Ray Data, which goes on. `on_step` raises it unless the task
        was only lost."""
        try:
            if not isinstance(root_cause(error), WorkerCrashed | OutOfMemory | NodeLost):
                raise error
            self.record_lost(error)
        except BaseException as failure:  # noqa: BLE001 - `check` raises it
            self.failure = self.failure or failure
            self.failed_at = self.failed_at or time.monotonic()

    def request_stop(self) -> None:
        """Request the processes of this pass to stop, once."""
        if not self.stopped:
            self.stopped = True
            self.stop()

    def check(self) -> None:
        """Raise the failure of a task, if any."""
        if self.failure is not None:
            raise self.failure

    def _check_in_time(self) -> None:
        """Raise the failure of a task after the other tasks had time to commit their rows."""
        if self.failed_at is not None and time.monotonic() - self.failed_at >= ABORT_SECONDS:
            self.check()

    def on_step(self, states: Sequence[OpState]) -> None:
        """Update the stage, and drain if requested. Raises JobFailure if the execution is given
        up."""
        if self.given_up:
            raise JobFailure("given up")
        self._check_in_time()
        if self.draining or self.failure is not None:
            self.request_stop()
        if self.stopped or any(has_dead_actors(state.op) for state in states):
            _drain(states)  # the next pass has new actors
        busy = [
            name
            for state in states
            # rows that wait for a batch to fill do not count
            if (name := _name(state.op.name, *self.ends))
            and (state.op.num_active_tasks() or state.has_pending_bundles())
        ]
        self.stage = busy[-1] if busy else self.stage


class ControlCallback(ExecutionCallback):
    """Connects an execution to the newest ExecutionControl. Workers import this class by name."""

    newest = ExecutionControl()

    def __init__(self) -> None:
        self._control = ControlCallback.newest

    def before_execution_starts(self, executor: StreamingExecutor) -> None:
        *_, last = executor._topology or {}
        bundle_in_time(last, self._control.rows_per_commit, self._control.commit_seconds)

    def on_execution_step(self, executor: StreamingExecutor) -> None:
        self._control.on_step(list((executor._topology or {}).values()))


def _drain(states: Sequence[OpState]) -> None:
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
