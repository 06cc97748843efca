"""Observes a Ray Data execution at each scheduling step, and drains or aborts it.

Pinned to the Ray version in pyproject.toml, like `pipeline.arrow`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.ray_compat import ExecutionCallback, InternalQueueOperatorMixin

if TYPE_CHECKING:
    from batchinference.pipeline.ray_compat import OpState, StreamingExecutor

INTO = "-into"
"""Name suffix of an operator that converts a step's rows for Ray's own operators."""
_OF_RAY = "UDF"
_STEP = re.compile(r"MapBatches\((.*)\)")
_ENDS = {"Read": "read", "Write": "write"}


class ExecutionControl:
    """Controls one execution. Another thread may drain or abort it, or read its current stage."""

    def __init__(self) -> None:
        self._given_up = threading.Event()
        self._draining = threading.Event()
        self.stage: str | None = None
        """The last stage that had work at the last scheduling step. If no rows come out, they are
        in this stage; earlier stages may only be waiting for it."""

    @property
    def draining(self) -> bool:
        return self._draining.is_set()

    @property
    def given_up(self) -> bool:
        return self._given_up.is_set()

    def give_up(self) -> None:
        """Abort the execution from within. Shutting down Ray while it runs would end the whole
        process."""
        self._given_up.set()

    def drain(self) -> None:
        """Drop waiting work. Running tasks finish, and their results are written."""
        self._draining.set()

    def look(self, states: Sequence[OpState]) -> None:
        """Update the stage, and drain if requested. Raises JobFailure after `give_up`."""
        if self._given_up.is_set():
            raise JobFailure("given up")
        if self._draining.is_set():
            _drain(states)
        names = _names([state.op.name for state in states])
        at_work = [
            name for state, name in zip(states, names, strict=True) if name and _has_work(state)
        ]
        self.stage = at_work[-1] if at_work else self.stage


class ControlCallback(ExecutionCallback):
    """Connects an execution to the newest ExecutionControl. Workers import this class by name."""

    oversight = ExecutionControl()

    def __init__(self) -> None:
        self._oversight = ControlCallback.oversight

    def on_execution_step(self, executor: StreamingExecutor) -> None:
        self._oversight.look(list((executor._topology or {}).values()))


def _drain(states: Sequence[OpState]) -> None:
    """Clear the input queues of all operators except the last one, which writes."""
    for state in states[:-1]:
        for queue in state.input_queues:
            queue.clear()
        if isinstance(state.op, InternalQueueOperatorMixin):
            state.op.clear_internal_input_queue()


def _has_work(state: OpState) -> bool:
    """Return whether an operator has work, not counting rows that wait for a batch to fill."""
    return bool(state.op.num_active_tasks() or state.has_pending_bundles())


def _names(operators: Sequence[str]) -> list[str]:
    """Return the job's names of the operators.

    Ray's own operators belong to the step whose rows an earlier operator converted for them."""
    names: list[str] = []
    step = ""
    for name in map(_name, operators):
        step = name.removesuffix(INTO) if name.endswith(INTO) else step
        names.append(step if name.endswith(_OF_RAY) else name)
    return names


def _name(operator: str) -> str:
    """Return the job's name of an operator of Ray Data, which may be several fused operators.

    The name is empty if the operator is unknown."""
    parts = [_of_part(part) for part in operator.split("->")]
    return ", ".join(filter(None, parts))


def _of_part(part: str) -> str:
    if found := _STEP.fullmatch(part):
        return found[1]
    return next((name for start, name in _ENDS.items() if part.startswith(start)), "")
