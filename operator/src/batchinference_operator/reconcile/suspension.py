"""Suspends a job: it must hold no resources."""

from __future__ import annotations

from datetime import datetime

from batchinference.spec.lifecycle import STOP_SECONDS
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.cleanup import half_removed, holds_anything, own
from batchinference_operator.reconcile.clock import age, stamp
from batchinference_operator.reconcile.model import Actions, JobView, Observed
from batchinference_operator.status.attempts import closed, current, is_open
from batchinference_operator.status.conditions import Verdict, condition_of
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.status import Finding, Status, build_status

STOP_LOOK_SECONDS = 2.0
"""How often the operator checks whether a driver that was asked to stop has ended."""
LOOK_SECONDS = 5.0
"""How often the operator checks whether everything is gone."""


def suspend(observed: Observed, now: datetime) -> Actions:
    """Return the actions that remove what still runs.

    The status says so first, so that the removal is not taken for a failure.
    """
    job, ours = observed.job, own(observed)
    live = tuple(seen for seen in ours if not seen.ended)
    release = tuple(seen for seen in ours if seen.ended and seen.kept)
    if is_open(job.status):
        status = closed(_suspending(job, now), "Suspended", stamp(now))
        return Actions(status=status, again_after=0)
    if holds_anything(observed):
        return _end_all(observed, live, release, now)
    verdict = Verdict("Suspended", "suspend is set; false goes on", suspended=True)
    finding = Finding(Phase.SUSPENDED, verdict)
    status = build_status(job.status, job.generation, finding, stamp(now))
    return Actions(release=release, status=status)


def _end_all(
    observed: Observed, live: tuple[RayJobView, ...], release: tuple[RayJobView, ...], now: datetime
) -> Actions:
    """Let drivers commit the work in progress for up to STOP_SECONDS, and remove all else."""
    job = observed.job
    stop = tuple(seen for seen in live if _may_commit(job, seen, now))
    remove = (*(seen for seen in live if seen not in stop), *half_removed(observed))
    status, again = _suspending(job, now), STOP_LOOK_SECONDS if stop else LOOK_SECONDS
    return Actions(stop, remove, release=release, status=status, again_after=again)


def _may_commit(job: JobView, seen: RayJobView, now: datetime) -> bool:
    """Return whether a driver has time left to commit the work in progress."""
    attempt = current(job.status) or {}
    if not seen.drives or attempt.get("outcome") != "Suspended":
        return False
    return age(attempt["completionTime"], now) < STOP_SECONDS


def _suspending(job: JobView, now: datetime) -> Status:
    verdict = Verdict("Suspending", "the RayJob is being removed, with all that it holds")
    finding = Finding(Phase.SUSPENDING, verdict)
    return build_status(resumed(job, now), job.generation, finding, stamp(now))


def resumed(job: JobView, now: datetime) -> Status:
    """Return the status with the time for which the job was suspended added."""
    before = condition_of(job.status, "Suspended")
    if before is None or before["status"] != "True":
        return job.status
    seconds = job.status.get("suspendedSeconds", 0) + round(age(before["lastTransitionTime"], now))
    return {**job.status, "suspendedSeconds": seconds}
