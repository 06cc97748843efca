"""Chooses the job to preempt, whose slot a job with a higher priority takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from batchinference_operator.reconcile.queue_entry import JobKey
from batchinference_operator.reconcile.reservations import Reservations

_NOT_STARTED = "~"
"""A string that is greater than each start time."""


@dataclass(frozen=True)
class Slot:
    """A slot that a job with a higher priority may take."""

    key: JobKey
    """The job that runs in it."""
    priority: int
    """The priority of the job that runs in it, or for which it is reserved."""
    started_at: str = _NOT_STARTED
    """When the job that runs in it started."""


@dataclass(frozen=True)
class Preemptor:
    """The job that preempts another job of its namespace."""

    name: str
    priority: int


def preemptible_slots(
    namespace: str,
    running: Collection[JobKey],
    admitted: Collection[JobKey],
    reservations: Reservations,
) -> Iterator[Slot]:
    """Yield the slots of a namespace that a job with a higher priority may take.

    `running` are the running jobs with an observed RayJob. Other jobs keep their slots. Jobs that
    Kueue manages have no slots.
    """
    in_namespace = {key for key in running if key[0] == namespace}
    for key in in_namespace | reservations.in_namespace(namespace):
        preemptor, entry = reservations.preemptor(key), reservations.entries.get(key)
        if preemptor is not None and preemptor not in admitted:
            yield Slot(key, reservations.entries[preemptor].priority)
        elif preemptor is None and entry and entry.preemptible:
            yield Slot(key, entry.priority, entry.started_at)


def choose_slot(slots: Iterable[Slot], priority: int) -> Slot | None:
    """Return the slot with the lowest priority and, among equals, the latest start.

    None if no slot has a lower priority than `priority`.
    """
    lower = (slot for slot in slots if slot.priority < priority)
    return max(lower, key=lambda slot: (-slot.priority, slot.started_at, slot.key), default=None)
