"""What is left of a job that has ended, and for how long."""

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
"""How long a RayJob may go on when its job has ended: KubeRay learns of the driver's end some
seconds later than its report is read."""


def clean_up(observed: Observed, policies: Policies, now: datetime) -> Actions:
    """The status is final. Nothing goes on any longer, and clusters and RayJobs are kept for as
    long as the job's ttl says."""
    since = age(_end_seen(observed.job), now)
    remove, release, waits = list(half_removed(observed)), [], []
    if remove or any(not seen.ended for seen in mine(observed)):
        waits.append(END_SECONDS)  # that they have gone, no watch may tell
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
    """When the end was written, by the operator's clock. The driver's may tell any time."""
    end = "Complete" if holds(job.status, "Complete") else "Failed"
    return str((condition_of(job.status, end) or {}).get("lastTransitionTime", ""))


def _given_up(job: JobView) -> bool:
    """Whether the driver has not ended, but the operator has ended the job."""
    cause = Cause.named((condition_of(job.status, "Failed") or {}).get("reason"))
    return cause is not None and cause.gives_up


def _is_debugged(job: JobView, ttl: Ttl) -> bool:
    """Whether the cluster of a job that the operator has ended is kept for a while. That of one
    that has used up its GPU hours never is."""
    over = (condition_of(job.status, "Failed") or {}).get("reason") == Cause.LIMIT_EXCEEDED
    return _given_up(job) and not over and seconds_of(ttl.cluster) > 0


def _end_of(job: JobView, seen: RayJobView, ttl: Ttl) -> float:
    """Seconds from the job's end for which a RayJob may go on that has not ended."""
    if not _given_up(job):
        return END_SECONDS
    if not _is_debugged(job, ttl) or seen.held:
        return 0.0  # what Kueue holds back has nothing to debug, and may be admitted later
    return float(STOP_SECONDS if seen.drives else seconds_of(ttl.cluster))


def _kept_for(seen: RayJobView, ttl: Ttl, end: float) -> float:
    """Seconds from the job's end for which a RayJob is left alone, `end` where it has not ended."""
    longest = inf if seen.ended else end
    return longest if ttl.ray_job is None else min(longest, seconds_of(ttl.ray_job))


def mine(observed: Observed) -> list[RayJobView]:
    """The RayJobs of this job, and of no other that bore its name."""
    uid = observed.job.uid
    return [seen for seen in observed.ray_jobs.values() if seen.owner_uid == uid]


def own(observed: Observed) -> list[RayJobView]:
    """Those that are not being deleted."""
    return [seen for seen in mine(observed) if not seen.deleting]


def half_removed(observed: Observed) -> tuple[RayJobView, ...]:
    """RayJobs whose deletion was asked for, and whose clusters are there all the same: KubeRay is
    away, and the operator has not come to delete them itself."""
    clusters = {pod.cluster for pod in observed.pods if pod.ended is None}
    return tuple(seen for seen in mine(observed) if seen.deleting and seen.cluster in clusters)


def holds_anything(observed: Observed) -> bool:
    """Whether a RayJob or a pod of this job still holds resources."""
    live = any(not seen.ended for seen in mine(observed))
    return live or observed.unheard_pods or any(pod.ended is None for pod in observed.pods)
