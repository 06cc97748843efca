"""The slots of preempted jobs. Each slot is reserved for the waiting job that preempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batchinference_operator.reconcile.queue_entry import JobKey, QueueEntry


@dataclass
class Reservations:
    """Maps each preempted job to the preemptor, for which its slot is reserved.

    A reservation exists only here until it is in the status of the preempted job. If the operator
    stops before that, the waiting job requests a slot again.
    """

    entries: Mapping[JobKey, QueueEntry]
    _preemptors: dict[JobKey, JobKey] = field(default_factory=dict)
    """The preemptors by preempted job. At startup, a preemptor may not have been observed yet."""

    def preemptor(self, key: JobKey) -> JobKey | None:
        """Return the preemptor of a job if it waits and has a higher priority; otherwise None."""
        preemptor = self._preemptors.get(key)
        if preemptor is None or key not in self.entries or preemptor not in self.entries:
            return None
        entry = self.entries[preemptor]
        valid = entry.waiting and entry.priority > self.entries[key].priority
        return preemptor if valid else None

    def preempted_by(self, key: JobKey) -> list[JobKey]:
        """Return the jobs whose slots are reserved for a job."""
        return [one for one in self._preemptors if self.preemptor(one) == key]

    def in_namespace(self, namespace: str) -> set[JobKey]:
        """Return the preempted jobs of a namespace."""
        return {key for key in self._preemptors if key[0] == namespace}

    def reserve(self, key: JobKey, preemptor: JobKey) -> JobKey | None:
        """Reserve the slot of a job. Return the job for which it was reserved before."""
        before = self.preemptor(key)
        self._preemptors[key] = preemptor
        return before

    def cancel(self, key: JobKey) -> JobKey | None:
        """Cancel the reservation of a job's slot. Return the job for which it was reserved."""
        return self._preemptors.pop(key, None)

    def release(self, preemptor: JobKey) -> list[JobKey]:
        """Cancel the reservations for a job. Return the preempted jobs."""
        released = [key for key, one in self._preemptors.items() if one == preemptor]
        for key in released:
            del self._preemptors[key]
        return released

    def update(self, key: JobKey, before: QueueEntry | None) -> set[JobKey | None]:
        """Apply a new entry of a job. Return the other affected jobs.

        `before` is the previous entry of the job.
        """
        entry = self.entries.get(key)
        affected = {self._preemptors.get(key)}
        recorded = _recorded_preemptor(entry)
        changed = recorded != _recorded_preemptor(before)
        if recorded and changed:
            self._preemptors[key] = key[0], recorded
        elif not recorded and (changed or not (entry and entry.running and not entry.finalizing)):
            self._preemptors.pop(key, None)
        affected.add(self._preemptors.get(key))
        if before is not None and (entry is None or not entry.waiting):
            affected.update(self.release(key))
        return affected


def _recorded_preemptor(entry: QueueEntry | None) -> str:
    """Return the preemptor in the status of a preempted job; empty for a running job.

    A running job has its own slot, and the reservation in its status may be outdated.
    """
    if entry is None or (entry.running and not entry.stopping):
        return ""
    return entry.reserved_for
