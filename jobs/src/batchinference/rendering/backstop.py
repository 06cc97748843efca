"""Deadlines of the RayJob itself, by which KubeRay ends it when the operator is away."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from batchinference.spec.durations import seconds_of
from batchinference.spec.lifecycle import Deadlines

GRACE_SECONDS = 3600
"""How much later KubeRay ends an attempt than the operator would. A restart of the operator, which
knows the cause and so is to act first, takes less."""
MAX_SECONDS = 2**31 - 1
"""The largest value that KubeRay takes."""


class Backstop(NamedTuple):
    """Seconds from the start of a RayJob after which KubeRay ends it; None for never."""

    active: int | None = None
    """Until it has ended."""
    pre_running: int | None = None
    """Until its cluster is ready for the driver."""

    @classmethod
    def of(cls, deadlines: Deadlines, *, queued: bool, counting: bool, waited: int = 0) -> Backstop:
        """The backstop of one attempt, later than each of the operator's deadlines.

        KubeRay counts from the start of the RayJob, which is never before its creation. The
        operator counts `pending` and `active` from `waited` seconds after the creation. `counting`
        is false while the operator may still begin to count anew, which KubeRay does not: when pods
        are gated, as those of a `queued` job may be. A queued cluster may wait for gated pods
        without end, so it has no deadline before it is ready.
        """
        active = _later(deadlines.active, waited) if counting else None
        pending = _later(deadlines.pending, waited) if counting and not queued else None
        ends = [end for end in (active, _later(deadlines.total)) if end is not None]
        return cls(min(ends, default=None), pending)

    @classmethod
    def in_spec(cls, spec: dict[str, Any]) -> Self:
        """The backstop that the spec of a RayJob has."""
        return cls(spec.get("activeDeadlineSeconds"), spec.get("preRunningDeadlineSeconds"))

    @property
    def fields(self) -> dict[str, int | None]:
        """The fields of the spec of a RayJob."""
        return {"activeDeadlineSeconds": self.active, "preRunningDeadlineSeconds": self.pre_running}


def _later(duration: str | None, waited: int = 0) -> int | None:
    """The grace after a deadline; None where there is no deadline, or one of decades."""
    if duration is None:
        return None
    seconds = seconds_of(duration) + waited + GRACE_SECONDS
    return seconds if seconds <= MAX_SECONDS else None
