"""Observes a Ray Data execution at each scheduling step, and drains or aborts it.

Pinned to the Ray version in pyproject.toml, like `pipeline.arrow`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.ray_compat import ExecutionCallback, InternalQueueOperatorMixin

if TYPE_CHECKING:
    from batchinference.pipeline.ray_compat import OpState, StreamingExecutor

_OPERATOR = re.compile(r"MapBatches\((.*)\)|(Read|Write).*")


@dataclass
class ExecutionControl:
    """Controls one execution, from another thread."""

    draining: bool = False
    """Whether waiting work is dropped. Running tasks finish, and their results are written."""
    given_up: bool = False
    """Whether the execution is aborted from within. Shutting down Ray while it runs would end the
    whole process."""
    stage: str | None = None
    """The last stage that had work at the last scheduling step. If the job makes no progress, it
    waits for this stage; earlier stages may only be waiting for it."""

    def on_step(self, states: Sequence[OpState]) -> None:
        """Update the stage, and drain if requested. Raises JobFailure if the execution is given
        up."""
        if self.given_up:
            raise JobFailure("given up")
        if self.draining:
            _drain(states)
        busy = [
            name
            for state in states
            # rows that wait for a batch to fill do not count
            if (name := _name(state.op.name))
            and (state.op.num_active_tasks() or state.has_pending_bundles())
        ]
        self.stage = busy[-1] if busy else self.stage


class ControlCallback(ExecutionCallback):
    """Connects an execution to the newest ExecutionControl. Workers import this class by name."""

    newest = ExecutionControl()

    def __init__(self) -> None:
        self._control = ControlCallback.newest

    def on_execution_step(self, executor: StreamingExecutor) -> None:
        self._control.on_step(list((executor._topology or {}).values()))


def _drain(states: Sequence[OpState]) -> None:
    """Clear the input queues of all operators except the last one, which writes."""
    for state in states[:-1]:
        for queue in state.input_queues:
            queue.clear()
        if isinstance(state.op, InternalQueueOperatorMixin):
            state.op.clear_internal_input_queue()


def _name(operator: str) -> str:
    """Return the name in the job of an operator of Ray Data, which may be several fused operators.

    The name is empty if the operator is unknown."""
    found = filter(None, map(_OPERATOR.fullmatch, operator.split("->")))
    return ", ".join(match[1] or match[2].lower() for match in found)
