"""Connects an execution of Ray Data to its ExecutionControl, which stops it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from batchinference.pipeline.execution.execution_control import ExecutionControl
from batchinference.pipeline.ray_data_compat import (
    ExecutionCallback,
    InternalQueueOperatorMixin,
    bundle_in_time,
    bundle_whole_calls,
    has_dead_actors,
    has_results,
    keep_blocks_of_reads,
    start_late_bundle,
)

if TYPE_CHECKING:
    from batchinference.pipeline.ray_data_compat import OpState, StreamingExecutor

_OPERATOR = re.compile(r"MapBatches\((.*)\)|(Read|Write).*")


@dataclass(frozen=True)
class ObservedExecution:
    """An execution, and what `ControlCallback` must know about its operators."""

    control: ExecutionControl
    read: str = "read"
    write: str = "write"
    """The names of the stages that run in read tasks and in write tasks, as users see them."""
    sized_reads: bool = False
    """Whether read tasks make blocks that Ray Data must not split."""
    rows: int = 1
    seconds: float = 60.0
    """A write task starts as soon as it has `rows` rows, or after `seconds` with fewer rows."""


class ControlCallback(ExecutionCallback):
    """Connects an execution of Ray Data to its ExecutionControl. Ray makes the instances."""

    execution: ClassVar[ObservedExecution] = ObservedExecution(ExecutionControl())
    """The newest execution. Each instance keeps the one that is the newest when it is made."""

    def __init__(self) -> None:
        self._execution = ControlCallback.execution

    def before_execution_starts(self, executor: StreamingExecutor) -> None:
        """Set how the operators divide rows into blocks and calls. Ray calls this once."""
        operators, observed = [*(executor._topology or {})], self._execution
        for operator in operators:
            if observed.sized_reads:
                keep_blocks_of_reads(operator)
            bundle_whole_calls(operator)
        *_, last = operators
        bundle_in_time(last, observed.rows, observed.seconds)

    def on_execution_step(self, executor: StreamingExecutor) -> None:
        """Update the control. If it drains, drop the rows that wait. Ray calls this often."""
        states = list((executor._topology or {}).values())
        observed = self._execution
        if observed.control.measured_step and observed.control.measured_since is None:
            done = {_name(state.op.name, "", "") for state in states if has_results(state.op)}
            if observed.control.measured_step in done:
                observed.control.measured_since = time.monotonic()
        observed.control.on_step(busy_stages(states, observed.read, observed.write))
        if observed.control.draining or any(has_dead_actors(state.op) for state in states):
            _drop_waiting(states)  # the next pass computes these rows, with new actors
        for state in states[-1:]:
            start_late_bundle(state.op, at_once=observed.control.draining)


def busy_stages(states: Sequence[OpState], read: str, write: str) -> list[str]:
    """Return the names of the busy stages, in order. Waiting for a full batch does not count."""
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
    """Return the names of the stages in an operator of Ray Data; empty for an unknown operator.
    `ReadRows->MapBatches(model)` -> `read, model`."""
    matches = filter(None, map(_OPERATOR.fullmatch, operator.split("->")))
    return ", ".join(match[1] or {"Read": read, "Write": write}[match[2]] for match in matches)
