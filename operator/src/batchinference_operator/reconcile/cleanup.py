"""Cleans up a finished job: what is kept, and for how long."""

from __future__ import annotations

from datetime import datetime
from math import inf

from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of
from batchinference.spec.lifecycle import STOP_SECONDS, Ttl
from batchinference_operator.reconcile.clock import age
from batchinference_operator.reconcile.model import Actions, JobView, Observed
from batchinference_operator.reconcile.policies import Policies
from batchinference_operator.status.conditions import condition_of, holds
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.status import read_again

END_SECONDS = 30.0
"""How long a RayJob may continue after its job has ended. KubeRay notices the driver's end some
seconds after the operator has read the driver's report."""


def clean_up(observed: Observed, policies: Policies, now: datetime) -> Actions:
    """Return the actions for a job whose status is final.

    RayJobs that have not ended are ended. Clusters and RayJobs are kept for the job's TTL.
    """
    since = age(_end_seen(observed.job), now)
    remove, release, waits = list(half_removed(observed)), [], []
    if remove or any(not seen.ended for seen in mine(observed)):
        waits.append(END_SECONDS)  # a watch may miss their deletion
    for seen in own(observed):
        end = _end_of(observed.job, seen, policies.ttl)
        if (left := _kept_for(seen, policies.ttl, end) - since) <= 0:
            remove.append(seen)
            continue
        waits.append(left)
        if seen.ended and seen.kept:
            if (left := seconds_of(policies.ttl.cluster) - since) <= 0:
                release.append(seen)
            else:
                waits.append(left)
    again = min(waits, default=inf)
    return Actions(
        stop=tuple(
            seen
            for seen in own(observed)
            if _is_debugged(observed.job, policies.ttl) and seen.drives and seen not in remove
        ),
        remove=tuple(remove),
        release=tuple(release),
        status=read_again(observed.job.status, observed.job.generation),
        again_after=again if again < inf else None,
    )


def _end_seen(job: JobView) -> str:
    """Return when the end was written, by the operator's clock. The driver's clock may be wrong."""
    end = "Complete" if holds(job.status, "Complete") else "Failed"
    return str((condition_of(job.status, end) or {}).get("lastTransitionTime", ""))


def _given_up(job: JobView) -> bool:
    """Return whether the operator ended the job before its driver ended."""
    cause = Cause.named((condition_of(job.status, "Failed") or {}).get("reason"))
    return cause is not None and cause.gives_up


def _is_debugged(job: JobView, ttl: Ttl) -> bool:
    """Return whether the cluster of a job that the operator ended is kept for debugging.

    The cluster of a job that has used up its GPU hours is never kept.
    """
    over = (condition_of(job.status, "Failed") or {}).get("reason") == Cause.LIMIT_EXCEEDED
    return _given_up(job) and not over and seconds_of(ttl.cluster) > 0


def _end_of(job: JobView, seen: RayJobView, ttl: Ttl) -> float:
    """Return the seconds from the job's end for which a RayJob that has not ended may continue."""
    if not _given_up(job):
        return END_SECONDS
    if not _is_debugged(job, ttl) or seen.held:
        return 0.0  # a queued RayJob has nothing to debug, and Kueue may admit it later
    return float(STOP_SECONDS if seen.drives else seconds_of(ttl.cluster))


def _kept_for(seen: RayJobView, ttl: Ttl, end: float) -> float:
    """Return the seconds from the job's end for which a RayJob is kept: its TTL.

    `end` is the maximum for a RayJob that has not ended.
    """
    longest = inf if seen.ended else end
    return longest if ttl.ray_job is None else min(longest, seconds_of(ttl.ray_job))


def mine(observed: Observed) -> list[RayJobView]:
    """Return the RayJobs of this job, without those of an earlier job of the same name."""
    uid = observed.job.uid
    return [seen for seen in observed.ray_jobs.values() if seen.owner_uid == uid]


def own(observed: Observed) -> list[RayJobView]:
    """Return the RayJobs of this job that are not being deleted."""
    return [seen for seen in mine(observed) if not seen.deleting]


def half_removed(observed: Observed) -> tuple[RayJobView, ...]:
    """Return the RayJobs that are being deleted while their clusters still have pods.

    This happens if KubeRay is down and the operator has not deleted the clusters itself yet.
    """
    clusters = {pod.cluster for pod in observed.pods if pod.ended is None}
    return tuple(seen for seen in mine(observed) if seen.deleting and seen.cluster in clusters)


def holds_anything(observed: Observed) -> bool:
    """Return whether a RayJob or a pod of this job still holds resources."""
    live = any(not seen.ended for seen in mine(observed))
    return live or observed.unheard_pods or any(pod.ended is None for pod in observed.pods)
