"""Measures how many replicas of a step are fastest on one device (`replicasPerDevice: auto`).

The first pass has one replica per device, and stops soon after the first results. Each further pass
has one replica more. All passes commit their rows. The search ends when one more replica gains less
than the factor GAIN, does not fit into the device's memory, or exceeds the maximum."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from batchinference.pipeline.errors import JobFailure, ModelLoad, OutOfMemory
from batchinference.plan import Plan, Stage

GAIN = 1.1
"""The factor by which one more replica must at least speed up a step."""


@dataclass
class ReplicaSearch:
    """The search of a run at one output. Steps are measured one after another."""

    _undecided: dict[str, int]
    """The maximum number of replicas of each step that must still be measured."""
    _replicas: dict[str, int] = field(default_factory=dict)
    _rate: float = 0.0
    """The rows per second with one replica less than now; 0.0 in the first measurement."""
    _notes: list[tuple[str, str]] = field(default_factory=list)
    """The decisions that are not yet reported (step, JSON)."""

    @classmethod
    def of(cls, plan: Plan, *, repeatable: bool) -> ReplicaSearch:
        """Return the search for a plan. If the input is not `repeatable`, it is read in only one
        pass, and each step has one replica per device."""
        searched = [stage for stage in plan.stages if stage.searches and stage.gpus]
        undecided = {stage.name: stage.per_pod for stage in searched}
        return cls(undecided if repeatable else {}, dict.fromkeys(undecided, 1))

    @property
    def step(self) -> str | None:
        """The step that the next pass measures; None if all numbers are decided."""
        return next(iter(self._undecided), None)

    def with_replicas(self, plan: Plan) -> Plan:
        """Return the plan with the current number of replicas on each device."""
        return replace(plan, stages=tuple(map(self._with_gpu_share, plan.stages)))

    def _with_gpu_share(self, stage: Stage) -> Stage:
        number = self._replicas.get(stage.name)
        return replace(stage, gpus=int(10_000 / number) / 10_000) if number else stage

    def record(self, notes: Iterable[tuple[str, str]]) -> None:
        """Update the search with the notes of a pass. A pass without results is repeated."""
        step = self.step
        rate_of_replica = _rate(notes, step)
        if step is None or not rate_of_replica:
            return
        number = self._replicas[step]
        rate = number * rate_of_replica
        if rate < GAIN * self._rate:
            self._choose(step, number - 1)
        elif number == self._undecided[step]:
            self._choose(step, number)
        else:
            self._replicas[step], self._rate = number + 1, rate

    def retries_with_fewer(self, failure: JobFailure) -> bool:
        """Return whether a pass may have failed because its replicas do not fit on their devices.
        If so, choose one replica less. The next pass fails as well if the cause is another one."""
        step = self.step
        may_not_fit = type(failure) is JobFailure or isinstance(failure, ModelLoad | OutOfMemory)
        if step is None or self._replicas[step] == 1 or not may_not_fit:
            return False
        self._choose(step, self._replicas[step] - 1)
        return True

    def take_notes(self) -> list[tuple[str, str]]:
        """Return the decisions since the last call, as notes for the report (step, JSON)."""
        notes, self._notes = self._notes, []
        return notes

    def _choose(self, step: str, number: int) -> None:
        self._notes.append((step, json.dumps({"replicas_per_device": number})))
        self._replicas[step], self._rate = number, 0.0
        del self._undecided[step]


def _rate(notes: Iterable[tuple[str, str]], step: str | None) -> float:
    """Return the rows per second of one replica, including its waiting time; 0 if unknown."""
    timed = [note for name, text in notes if name == step and "rows" in (note := json.loads(text))]
    names = ("compute_seconds", "wait_seconds", "blocked_seconds")
    seconds = sum(sum(note.get(name, 0.0) for name in names) for note in timed)
    return float(sum(note["rows"] for note in timed) / seconds) if seconds else 0.0
