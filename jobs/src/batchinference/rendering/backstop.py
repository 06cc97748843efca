"""Computes the deadlines of the RayJob, which KubeRay enforces if the operator does not run."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from batchinference.spec.durations import seconds_of
from batchinference.spec.lifecycle import Deadlines

GRACE_SECONDS = 3600
"""Seconds between the operator's deadline and KubeRay's deadline for an attempt. The operator knows
the cause, so it should act first, even after a restart, which takes less time."""
MAX_SECONDS = 2**31 - 1
"""The largest value that KubeRay accepts."""


class Backstop(NamedTuple):
    """Seconds from the start of a RayJob after which KubeRay ends it. None means never."""

    active: int | None = None
    """Deadline for the RayJob to end."""
    pre_running: int | None = None
    """Deadline for its cluster to be ready for the driver."""

    @classmethod
    def of(cls, deadlines: Deadlines, *, queued: bool, counting: bool, waited: int = 0) -> Backstop:
        """Return the backstop of one attempt, which is later than each of the operator's deadlines.

        KubeRay counts from the start of the RayJob, which is never before its creation. The
        operator counts `pending` and `active` from `waited` seconds after the creation. `counting`
        is false while the operator may still restart its count, which KubeRay cannot do. This
        happens if pods are gated, as the pods of a `queued` job may be. A queued cluster may wait
        for gated pods indefinitely, so it has no deadline before it is ready.
        """
        active = _later(deadlines.active, waited) if counting else None
        pending = _later(deadlines.pending, waited) if counting and not queued else None
        ends = [end for end in (active, _later(deadlines.total)) if end is not None]
        return cls(min(ends, default=None), pending)

    @classmethod
    def in_spec(cls, spec: dict[str, Any]) -> Self:
        """Return the backstop in the spec of a RayJob."""
        return cls(spec.get("activeDeadlineSeconds"), spec.get("preRunningDeadlineSeconds"))

    @property
    def fields(self) -> dict[str, int | None]:
        """The fields of the RayJob spec."""
        return {"activeDeadlineSeconds": self.active, "preRunningDeadlineSeconds": self.pre_running}


def _later(duration: str | None, waited: int = 0) -> int | None:
    """Return the deadline plus the grace period; None without a deadline or above MAX_SECONDS."""
    if duration is None:
        return None
    seconds = seconds_of(duration) + waited + GRACE_SECONDS
    return seconds if seconds <= MAX_SECONDS else None
