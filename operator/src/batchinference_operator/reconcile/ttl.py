"""Decides by TTL when a finished or cancelled job, its RayJobs and its clusters are deleted."""

from dataclasses import replace
from datetime import datetime
from math import inf

from batchinference.rendering import KEEP_SECONDS, KubeRayDeadlines
from batchinference.spec.causes import Cause
from batchinference.spec.durations import seconds_of
from batchinference.spec.lifecycle import STOP_SECONDS, Ttl
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.mutable_spec import MutableSpec
from batchinference_operator.reconcile.observed_and_actions import Actions, Observed
from batchinference_operator.status.conditions import find_condition, is_condition_true
from batchinference_operator.status.job_status import with_observed_generation
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import seconds_since

END_SECONDS = 30.0
"""Seconds for which a RayJob may continue after the end of its job. KubeRay notices the end of the
driver some seconds after the operator has read the final report."""


def enforce_ttl(observed: Observed, spec: MutableSpec, now: datetime) -> Actions:
    """Return the actions for a finished job: delete objects whose TTL has expired and, again,
    RayJobs stuck in deletion; stop drivers, remove workers, and extend KubeRay's deadlines.

    Of the cluster of an ended RayJob, only the head is kept: limits do not count the workers of a
    finished job. While a RayJob has not ended, its workers are kept. If its driver has not started,
    KubeRay would regard a cluster that wants no workers as ready, and start the driver. RayJobs
    that continue after `_grace_seconds` are deleted."""
    end = "Complete" if is_condition_true(observed.job.status, "Complete") else "Failed"
    # the time at which the operator wrote the condition, because the clock of a driver may be wrong
    end_time = find_condition(observed.job.status, end).get("lastTransitionTime", "")
    since = seconds_since(end_time, now)
    remove, release, waits = observed.stuck_in_deletion, [], []
    if (kept := _job_retention_seconds(spec.ttl)) is not None:
        if kept <= since < inf:  # infinity: the end time is invalid
            return Actions(delete_job=True)
        waits.append(kept - since)
    if remove or any(not ray_job.ended for ray_job in observed.owned_ray_jobs):
        waits.append(END_SECONDS)  # in case a watch misses their end or their deletion
    for ray_job in observed.live_ray_jobs:
        if (left := _retention_seconds(observed, ray_job, spec) - since) <= 0:
            remove.append(ray_job)
            continue
        waits.append(left)
        if ray_job.ended and ray_job.cluster_retained:
            if (left := _head_retention_seconds(observed, ray_job, spec.ttl) - since) <= 0:
                release.append(ray_job)
            else:
                waits.append(left)
    requeue_after = min(waits, default=inf)
    clusters = [one for one in observed.live_ray_jobs if one not in (*remove, *release)]
    stop = [one for one in clusters if one.driver_running]
    return Actions(
        stop_drivers=tuple(stop if _kept_for_debugging(observed.job, spec) else ()),
        delete_ray_jobs=tuple(remove),
        release_clusters=tuple(release),
        remove_workers=tuple(one for one in clusters if one.ended and _has_workers(observed, one)),
        update_deadlines=_longer_backstop(clusters, spec.ttl),
        status=with_observed_generation(observed.job.status, observed.job.generation),
        requeue_after=requeue_after if requeue_after < inf else None,
    )


def _longer_backstop(
    ray_jobs: list[RayJobView], ttl: Ttl
) -> tuple[RayJobView, KubeRayDeadlines] | None:
    """Return a RayJob and its new deadlines if KubeRay would delete its cluster too early, because
    `ttl.cluster` was raised; else None."""
    wanted = ((one, one.deadlines.keeping(ttl)) for one in ray_jobs if one.cluster_retained)
    return next(((one, new) for one, new in wanted if one.deadlines.kept < new.kept), None)


def with_ttl_of_cancelled(actions: Actions, job: JobView, ttl: Ttl, now: datetime) -> Actions:
    """Return the actions for a cancelled job, which is suspended and never resumed. The job is
    deleted as if it had finished at its suspension."""
    suspended = find_condition(actions.status or job.status, "Suspended")
    kept = _job_retention_seconds(ttl)
    if not suspended or kept is None:
        return actions
    left = kept - seconds_since(suspended["lastTransitionTime"], now)
    return replace(actions, requeue_after=left) if left > 0 else Actions(delete_job=True)


def _has_workers(observed: Observed, ray_job: RayJobView) -> bool:
    """Return whether a cluster has workers that have not ended and are not being deleted."""
    workers = (pod for pod in observed.pods if not (pod.is_head or pod.deleting))
    return any(pod.cluster == ray_job.cluster and pod.ended_at is None for pod in workers)


def _head_retention_seconds(observed: Observed, ray_job: RayJobView, ttl: Ttl) -> float:
    """Return the seconds after the end of its job for which the head of a cluster is kept.

    If workers remain, because KubeRay does not remove them or the driver has not started, the
    result is at most KEEP_SECONDS.
    """
    kept = seconds_of(ttl.cluster)
    return min(kept, KEEP_SECONDS) if _has_workers(observed, ray_job) else kept


def _job_retention_seconds(ttl: Ttl) -> float | None:
    """Return the seconds after its end for which a BatchInference is kept; None means forever."""
    if ttl.after_finished is None:
        return None
    return max(map(seconds_of, filter(None, (ttl.after_finished, ttl.ray_job, ttl.cluster))))


def _ended_by_operator(job: JobView, spec: MutableSpec) -> bool:
    """Return whether the operator ended the job before its driver ended."""
    cause = Cause.from_name(find_condition(job.status, "Failed").get("reason"))
    if cause == Cause.LIMIT_EXCEEDED:  # at the limit of tokens, the driver ends the job
        hours = spec.limits.device_hours
        return hours is not None and job.status.get("deviceSeconds", 0) >= hours * 3600
    return cause is not None and cause.ended_by_operator


def _kept_for_debugging(job: JobView, spec: MutableSpec) -> bool:
    """Return whether the cluster of a job that the operator ended is kept for debugging. The
    cluster is never kept if the job has exceeded its device hours."""
    within_limit = find_condition(job.status, "Failed").get("reason") != Cause.LIMIT_EXCEEDED
    return _ended_by_operator(job, spec) and within_limit and seconds_of(spec.ttl.cluster) > 0


def _grace_seconds(observed: Observed, ray_job: RayJobView, spec: MutableSpec) -> float:
    """Return the seconds after the end of the job for which a RayJob may continue."""
    job = observed.job
    if not _ended_by_operator(job, spec):
        return END_SECONDS
    if not _kept_for_debugging(job, spec) or ray_job.suspended:
        return 0.0  # a queued RayJob has nothing to debug, and Kueue may admit it later
    if ray_job.driver_running:
        return STOP_SECONDS
    return _head_retention_seconds(observed, ray_job, spec.ttl)


def _retention_seconds(observed: Observed, ray_job: RayJobView, spec: MutableSpec) -> float:
    """Return the seconds after the end of the job for which a RayJob is kept."""
    maximum = inf if ray_job.ended else _grace_seconds(observed, ray_job, spec)
    kept = spec.ttl.ray_job
    return maximum if kept is None else min(maximum, seconds_of(kept))
