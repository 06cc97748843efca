"""Drains or aborts one pass on Ray, and says which stage is busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from batchinference.pipeline.error_classification import root_cause
from batchinference.pipeline.errors import (
    DeviceFailed,
    JobFailure,
    NodeLost,
    OutOfMemory,
    WorkerCrashed,
)
from batchinference.spec.lifecycle import DRAIN_SECONDS

ABORT_SECONDS = float(DRAIN_SECONDS)
"""After a task has failed, the other tasks have this many seconds to commit their rows, like at a
stop."""
MAX_LOST = 3
"""The pass ends if this many tasks are lost before any row is committed."""
_LOST = (WorkerCrashed, OutOfMemory, NodeLost, DeviceFailed)
"""The causes of a lost task. The rows of a lost task are missing, not failed."""


class Failure(NamedTuple):
    """The error of a task that ends the execution, and the monotonic time of its record."""

    error: BaseException
    at: float


@dataclass
class ExecutionControl:
    """Controls the execution of one pass. Other threads may use it."""

    recovers: bool = True
    """Whether the next pass can compute the rows of lost tasks."""
    has_commits: Callable[[], bool] = lambda: True
    """Returns whether this pass has committed rows."""
    has_deaths: Callable[[], bool] = lambda: False
    """Returns whether notes say on which rows processes of this pass died."""
    stop: Callable[[], None] = lambda: None
    """Requests the processes of this pass to stop."""
    measured_step: str | None = None
    """The step whose replicas per device are measured."""
    measured_seconds: float = 0.0
    """The pass ends this many seconds after the first results of the measured step."""
    measured_since: float | None = None
    """The monotonic time of the first results of the measured step."""
    draining: bool = False
    """Whether no further tasks start. Running tasks commit the results that they have."""
    given_up: bool = False
    """Whether the execution must raise an error and end."""
    _stop_requested: bool = False
    losses: list[JobFailure] = field(default_factory=list)
    """The causes of lost tasks and actor calls in this pass."""
    failure: Failure | None = None
    stage: str | None = None
    """The last busy stage of the pipeline at the last scheduling step. A job without progress waits
    for this stage. Earlier stages may be busy only because they wait for it."""

    def drain(self) -> None:
        """Start no further tasks, and request the processes of this pass to stop."""
        self.draining = True
        if not self._stop_requested:
            with suppress(Exception):  # Ray may not answer; `on_step` asks again
                self.stop()
                self._stop_requested = True

    def give_up(self) -> None:
        """Make the execution raise an error soon, so that Ray can be shut down. To shut down Ray
        during an execution would end the whole process."""
        self.given_up = True

    def record(self, error: BaseException) -> None:
        """Record the error of a lost task, or raise the error if it must end the execution. A task
        is lost if its process died too often, its node was lost or its device failed.

        After a device failure, the pass drains, so that the next pass can avoid the node. It also
        drains after MAX_LOST lost tasks without a commit. The next pass then isolates the rows on
        which the processes died. If these rows are unknown, the error is raised."""
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
        """Return whether this pass has committed rows. Asks storage only until the first commit."""
        known = self.has_commits()
        if known:
            self.has_commits = lambda: True
        return known

    def record_later(self, error: BaseException) -> None:
        """Record the error of a Ray Data task. If `record` raises the error, the other tasks first
        have time to commit, and then the execution ends."""
        try:
            self.record(error)
        except BaseException as failure:  # noqa: BLE001 - `check` raises it
            self.failure = self.failure or Failure(failure, time.monotonic())

    def check(self) -> None:
        """Raise the error of the failed task, if any."""
        if self.failure is not None:
            raise self.failure.error

    def on_step(self, busy: Sequence[str]) -> None:
        """Update `stage` from the `busy` stages. Drain after a failure or a measurement. Raises the
        failure after ABORT_SECONDS, and JobFailure if the execution was given up."""
        if self.given_up:
            raise JobFailure("given up")
        if self.failure is not None and time.monotonic() - self.failure.at >= ABORT_SECONDS:
            self.check()
        if self.draining or self.failure is not None:
            self.drain()
        self.stage = busy[-1] if busy else self.stage
        since = self.measured_since
        if since is not None and time.monotonic() - since >= self.measured_seconds:
            self.drain()
