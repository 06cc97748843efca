"""The slots of preempted jobs, each reserved for the waiting job that preempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batchinference_operator.reconcile.queue_entry import Key, QueueEntry


@dataclass
class Reservations:
    """For which job the slot of each preempted job is reserved.

    Until the preempted job has written the reservation to its status, it exists only here. If the
    operator stops before that, the waiting job requests a slot again.
    """

    entries: Mapping[Key, QueueEntry]
    _preemptors: dict[Key, Key] = field(default_factory=dict)
    """By preempted job. At startup, the preemptor may not have been observed yet."""

    def preemptor(self, key: Key) -> Key | None:
        """Return the job that preempts this one: it waits, and its priority is higher."""
        preemptor = self._preemptors.get(key)
        if preemptor is None or key not in self.entries or preemptor not in self.entries:
            return None
        entry = self.entries[preemptor]
        valid = entry.waiting and entry.priority > self.entries[key].priority
        return preemptor if valid else None

    def preempted_by(self, key: Key) -> list[Key]:
        """Return the jobs whose slots are reserved for this one."""
        return [one for one in self._preemptors if self.preemptor(one) == key]

    def in_namespace(self, namespace: str) -> set[Key]:
        """Return the preempted jobs of a namespace."""
        return {key for key in self._preemptors if key[0] == namespace}

    def reserve(self, key: Key, preemptor: Key) -> Key | None:
        """Reserve the slot of a job. Return the job for which it was reserved before."""
        before = self.preemptor(key)
        self._preemptors[key] = preemptor
        return before

    def cancel(self, key: Key) -> Key | None:
        """Cancel the reservation of a job's slot. Return the job for which it was reserved."""
        return self._preemptors.pop(key, None)

    def release(self, preemptor: Key) -> list[Key]:
        """Cancel the reservations for a job. Return the preempted jobs."""
        released = [key for key, one in self._preemptors.items() if one == preemptor]
        for key in released:
            del self._preemptors[key]
        return released

    def update(self, key: Key, before: QueueEntry | None) -> set[Key | None]:
        """Apply a new entry of a job. Return the other jobs that it concerns.

        `before` is the previous entry of the job.
        """
        entry = self.entries.get(key)
        concerned = {self._preemptors.get(key)}
        recorded = _recorded_preemptor(entry)
        changed = recorded != _recorded_preemptor(before)
        if recorded and changed:
            self._preemptors[key] = key[0], recorded
        elif not recorded and (changed or not (entry and entry.running and not entry.finalizing)):
            self._preemptors.pop(key, None)
        concerned.add(self._preemptors.get(key))
        if before is not None and (entry is None or not entry.waiting):
            concerned.update(self.release(key))
        return concerned


def _recorded_preemptor(entry: QueueEntry | None) -> str:
    """Return for which job the slot is reserved by the status; empty if the job runs.

    A running job has its own slot, and its status may be older than that.
    """
    if entry is None or (entry.running and not entry.stopping):
        return ""
    return entry.reserved_for
