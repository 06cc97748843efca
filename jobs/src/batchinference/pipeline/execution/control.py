"""What this process does at each step of Ray Data's execution: see where it is, and end it.

Pinned to the Ray version in pyproject.toml, as `blocks` is.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.ray_compat.execution import (
    ExecutionCallback,
    InternalQueueOperatorMixin,
    OpState,
    StreamingExecutor,
)

INTO = "-into"
"""How the name ends of an operator that makes a step's rows into those of Ray's own classes."""
_OF_RAY = "UDF"
_STEP = re.compile(r"MapBatches\((.*)\)")
_ENDS = {"Read": "read", "Write": "write"}


class ExecutionControl:
    """Of one execution, which another thread may end, or ask where it is."""

    def __init__(self) -> None:
        self._given_up = threading.Event()
        self._draining = threading.Event()
        self.stage: str | None = None
        """The last of the stages that had work at the last step: where rows do not come out, it is
        the one that they are in. Those before it may only wait for it."""

    def give_up(self) -> None:
        """End it from within: Ray must not be shut down under it, for then Ray ends the whole
        process."""
        self._given_up.set()

    def drain(self) -> None:
        """Begin nothing more: what runs is ended, and what has come of it is written."""
        self._draining.set()

    def look(self, states: Sequence[OpState]) -> None:
        """Raises JobFailure once the execution is given up."""
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
    """Has the execution that was made last overseen. A class: workers get it by its name."""

    oversight = ExecutionControl()

    def __init__(self) -> None:
        self._oversight = ControlCallback.oversight

    def on_execution_step(self, executor: StreamingExecutor) -> None:
        self._oversight.look(list((executor._topology or {}).values()))


def _drain(states: Sequence[OpState]) -> None:
    """Drop what waits before any operator but the last, which writes."""
    for state in states[:-1]:
        for queue in state.input_queues:
            queue.clear()
        if isinstance(state.op, InternalQueueOperatorMixin):
            state.op.clear_internal_input_queue()


def _has_work(state: OpState) -> bool:
    """Rows that only wait for more to fill a batch are not among them."""
    return bool(state.op.num_active_tasks() or state.has_pending_bundles())


def _names(operators: Sequence[str]) -> list[str]:
    """What a job calls the operators. Those of Ray's own classes are parts of the step whose rows
    the operator before them has made into theirs."""
    names: list[str] = []
    step = ""
    for name in map(_name, operators):
        step = name.removesuffix(INTO) if name.endswith(INTO) else step
        names.append(step if name.endswith(_OF_RAY) else name)
    return names


def _name(operator: str) -> str:
    """What a job calls an operator of Ray Data, which may be several that run as one; empty for one
    that it does not know."""
    parts = [_of_part(part) for part in operator.split("->")]
    return ", ".join(filter(None, parts))


def _of_part(part: str) -> str:
    if found := _STEP.fullmatch(part):
        return found[1]
    return next((name for start, name in _ENDS.items() if part.startswith(start)), "")
