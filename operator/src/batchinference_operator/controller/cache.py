"""The cache of watched jobs and RayJobs, with only the fields that reconcile needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from batchinference_operator.controller.pod_cache import PodCache
from batchinference_operator.observability.job_metrics import JobSummary
from batchinference_operator.reconcile.admission_queue import AdmissionQueue, queue_entry
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.job_view import JobKey, JobView, key_of, parent_of, stub_of
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.reconcile.unsent_notifications import unsent_notifications
from batchinference_operator.status.attempts import attempt_number
from batchinference_operator.status.ray_job_view import Object, RayJobView


@dataclass(frozen=True, slots=True)
class CompactJob:
    """A job in the cache. JSON needs less memory than objects."""

    uid: str
    created_at: str
    resource_version: str
    summary: JobSummary
    attempt: int
    """The number of the last attempt; 0 if there is none, or if the job is settled."""
    settled: bool
    """Whether nothing is left to do for the job except to delete it later (`_is_settled`)."""
    deleting: bool
    fields: str
    """The fields of the JobView as JSON. A settled job has only the fields that are still read."""

    @classmethod
    def of(cls, job: JobView) -> CompactJob:
        """Return a job in compact form."""
        settled = _is_settled(job)
        job = _without_unused_fields(job) if settled else job
        attempt = attempt_number(job.status)
        first = job.uid, job.created_at, job.resource_version, JobSummary.of(job), attempt
        return cls(*first, settled, job.deleting, json.dumps(vars(job), separators=(",", ":")))

    def job(self) -> JobView:
        """Return the job. A settled job has only the fields that are still read."""
        return JobView(**json.loads(self.fields))


def _is_settled(job: JobView) -> bool:
    """Return whether the job is finished, its status is up to date with its spec, and it has no
    notifications to send."""
    current = job.status.get("observedGeneration") == job.generation
    return job.finished and current and not unsent_notifications(job)


def _without_unused_fields(job: JobView) -> JobView:
    """Return a finished job with only the fields that are still read."""
    fields = ("type", "status", "reason", "lastTransitionTime")
    conditions = [{name: c[name] for name in fields if name in c} for c in job.status["conditions"]]
    spec = {name: value for name, value in job.spec.items() if name in ("ttl", "managedBy")}
    if limits := (job.spec.get("cluster") or {}).get("limits"):
        spec["cluster"] = {"limits": limits}
    compact = {"conditions": conditions, "observedGeneration": job.generation}
    compact |= {name: job.status[name] for name in ("deviceSeconds",) if name in job.status}
    return replace(job, spec=spec, status=compact)


class Cache:
    """The latest state of each object that the watches have reported.

    `set_job` and `set_ray_job` return the key of the job, or None if nothing changed. Reflectors
    report changes of RayJobs and pods in order, including deletions. kopf reports the changes of
    one job in order. But if a job is deleted and created again, the events of the two objects may
    arrive in any order. The object that was created last is kept.
    """

    def __init__(self, config: Config) -> None:
        self._platform = config.defaults
        self.admission_queue = AdmissionQueue(config.concurrency)
        self.on_change: Callable[[JobView, JobView], None] = lambda *_: None
        """Called with the old and the new state when a managed job that was not settled changes."""
        self._jobs: dict[JobKey, CompactJob] = {}
        self._ray_jobs: dict[JobKey, dict[str, RayJobView]] = {}
        self._parents: dict[tuple[str, str], JobKey] = {}
        """The job of each RayJob, by the namespace and name of the RayJob."""
        self._ray_job_versions: dict[str, str] = {}
        """The resource version up to which RayJobs are known, by namespace ("" for all)."""
        self.active_drivers: set[JobKey] = set()
        """The jobs whose drivers are polled."""
        self.pods = PodCache(self._ray_job_of_cluster)

    def set_job(self, body: Object) -> JobKey | None:
        """Store a job, unless the cache has this version, a later one, or a job created later."""
        job = JobView.of(body)
        key = job.key
        cached = self._jobs.get(key)
        if _is_known(job, cached) or _is_replaced(job, cached):
            return None
        self._jobs[key] = CompactJob.of(job)
        self._update_entry(job)
        same = cached is not None and cached.uid == job.uid
        if cached is not None and same and not cached.settled and job.managed:
            self.on_change(cached.job(), job)
        return key

    def _update_entry(self, job: JobView) -> None:
        ray_job = self._ray_jobs.get(job.key, {}).get(job.last_attempt_names.ray_job)
        gone = ray_job is None or ray_job.ended
        self.admission_queue.update(job.key, queue_entry(job, self._platform, gone=gone))

    def set_written_job(self, body: Object) -> None:
        """Store a job as returned by a status write, unless the cache no longer has the job."""
        if key_of(body) in self._jobs:
            self.set_job(body)

    def delete_job(self, body: Object) -> JobKey:
        """Forget a deleted job, unless another job with its name has been created."""
        key = key_of(body)
        self.forget_job(key, body["metadata"]["uid"])
        return key

    def forget_job(self, key: JobKey, uid: str) -> None:
        """Forget a job that is gone, unless another job with its name has been created."""
        if key in self._jobs and self._jobs[key].uid == uid:
            del self._jobs[key]
            self.admission_queue.update(key, None)
            self.pods.forget_job(key)

    def set_ray_job(self, body: Object) -> JobKey | None:
        """Store a RayJob that the watch reports."""
        metadata = body["metadata"]
        self.set_ray_job_version(metadata["namespace"], metadata.get("resourceVersion", ""))
        return self._set_ray_job(body)

    def _set_ray_job(self, body: Object) -> JobKey | None:
        key, view = parent_of(body), RayJobView.of(body)
        former = self._parents.get((key[0], view.name), key)
        if former != key:  # a user has changed the label that names the job
            self._drop_ray_job(former, view.name)
        ray_jobs = self._ray_jobs.setdefault(key, {})
        before = ray_jobs.get(view.name)
        if _is_replaced(view, before):
            return None
        ray_jobs[view.name] = view
        self._parents[key[0], view.name] = key
        self._update_usage(key)
        return None if view == before else key

    def set_ray_job_version(self, namespace: str, version: str) -> None:
        """Record the version up to which the RayJobs of a namespace ("" for all) are known."""
        former = self._ray_job_versions.get(namespace, "")
        self._ray_job_versions[namespace] = max(former, version, key=_version_order)

    def add_ray_job(self, body: Object) -> None:
        """Store a RayJob that the operator has just created, before the watch reports it.

        If the watch is past the resource version of the RayJob, the watch has already reported the
        RayJob, and perhaps its deletion. Then nothing is stored.
        """
        key, metadata = parent_of(body), body["metadata"]
        reported = max(
            map(_version_order, (self._ray_job_versions.get(each, "") for each in (key[0], "")))
        )
        if _version_order(metadata["resourceVersion"]) > reported:
            self._set_ray_job(body)

    def mark_deleting(self, key: JobKey, ray_job: RayJobView, now: str) -> None:
        """Mark a RayJob as being deleted, before the watch reports it."""
        ray_jobs = self._ray_jobs.get(key, {})
        if ray_jobs.get(ray_job.name) is ray_job:
            ray_jobs[ray_job.name] = replace(ray_job, deleted_at=ray_job.deleted_at or now)
            self._update_usage(key)

    def _update_usage(self, key: JobKey) -> None:
        """Record whether a job uses the concurrency limit and has an active driver. A live RayJob
        uses the limit if Kueue does not manage it."""
        ray_jobs = self._ray_jobs.get(key, {}).values()
        live = [ray_job for ray_job in ray_jobs if ray_job.owner_uid and not ray_job.ended]
        self.admission_queue.update_usage(key, any(not ray_job.queue for ray_job in live))
        if (job := self._jobs.get(key)) is not None and job.deleting:
            self._update_entry(job.job())
        active = any(ray_job.driver_started for ray_job in live)
        (self.active_drivers.add if active else self.active_drivers.discard)(key)

    def delete_ray_job(self, body: Object) -> JobKey:
        """Forget a deleted RayJob, and the disruptions and crashes of its cluster."""
        key, name = parent_of(body), body["metadata"]["name"]
        cached = self._ray_jobs.get(key, {}).get(name)
        if cached is not None and cached.uid == body["metadata"]["uid"]:
            self._drop_ray_job(key, name)
        return key

    def _drop_ray_job(self, key: JobKey, name: str) -> None:
        ray_job = self._ray_jobs[key].pop(name)
        del self._parents[key[0], name]
        if not self._ray_jobs[key]:
            del self._ray_jobs[key]
        self._update_usage(key)
        self.pods.forget_cluster(key, ray_job.cluster)

    def ray_job_stubs(self, namespace: str) -> list[Object]:
        """Return a stub (`stub_of`) of each RayJob in a namespace ("" for all namespaces)."""
        return [
            stub_of(key, ray_job.name, ray_job.uid)
            for key, ray_jobs in self._ray_jobs.items()
            for ray_job in ray_jobs.values()
            if namespace in ("", key[0])
        ]

    def is_current(self, job: JobView) -> bool:
        """Return whether the cache holds this version of a job."""
        cached = self._jobs.get(job.key)
        return cached is not None and cached.resource_version == job.resource_version

    def ray_jobs(self, key: JobKey) -> tuple[RayJobView, ...]:
        """Return the RayJobs that have the label of a job. The job itself may be gone."""
        return tuple(self._ray_jobs.get(key, {}).values())

    def _ray_job_of_cluster(self, key: JobKey, cluster: str) -> RayJobView | None:
        ray_jobs = self._ray_jobs.get(key, {}).values()
        return next((ray_job for ray_job in ray_jobs if ray_job.cluster == cluster), None)

    def observe(self, key: JobKey) -> Observed | None:
        """Return the cached state of a job and its objects; None if the job is gone."""
        compact = self._jobs.get(key)
        if compact is None:
            return None
        job = compact.job()
        observed = Observed(job, dict(self._ray_jobs.get(key, {})))
        cluster = observed.cluster
        return replace(
            observed,
            pods=self.pods.pods_of(key),
            disruption=self.pods.disruption(key, cluster),
            crashes=self.pods.crashes(key, cluster),
        )

    def uids(self) -> dict[JobKey, str]:
        """Return the uids of all known jobs."""
        return {key: job.uid for key, job in self._jobs.items()}

    def attempt_number(self, key: JobKey) -> int:
        """Return the number of a job's last attempt; 0 if there is none, or the job is settled."""
        job = self._jobs.get(key)
        return 0 if job is None else job.attempt

    def summaries(self) -> Iterable[JobSummary]:
        """Return the summaries of all jobs for the metrics."""
        return (job.summary for job in self._jobs.values())


def _is_known(job: JobView, cached: CompactJob | None) -> bool:
    """Return whether the cache has this version of a job or a newer version. The cache may be ahead
    of the watch, because the operator stores the response of each write."""
    if cached is None or cached.uid != job.uid:
        return False
    return _version_order(job.resource_version) <= _version_order(cached.resource_version)


def _is_replaced(view: JobView | RayJobView, cached: CompactJob | RayJobView | None) -> bool:
    """Return whether the cache has another object of this name that was created later."""
    return (
        cached is not None
        and cached.uid != view.uid
        and _creation_order(view) < _creation_order(cached)
    )


def _creation_order(view: JobView | RayJobView | CompactJob) -> tuple[str, int, str]:
    """Return the sort key that orders objects of the same name by creation.

    Creation times have a resolution of one second. Within a second, the resource version of a job
    decides: all versions of the earlier object are lower.
    """
    return view.created_at, *_version_order(
        "" if isinstance(view, RayJobView) else view.resource_version
    )


def _version_order(version: str) -> tuple[int, str]:
    """Return a sort key that orders resource versions as numbers."""
    return len(version), version
