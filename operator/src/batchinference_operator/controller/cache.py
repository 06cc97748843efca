"""The informer cache: what reconcile needs of each watched object, in little memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

from batchinference.spec.cluster import Cluster
from batchinference_operator.controller.compact_job import CompactJob
from batchinference_operator.controller.keys import Key, key_of, parent_of
from batchinference_operator.controller.pod_cache import STALE_SECONDS, PodCache
from batchinference_operator.reconcile.admission_queue import AdmissionQueue, Concurrency
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.job_summary import JobSummary
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.queue_entry import entry_of
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.ray_job import Object, RayJobView

UNSYNCED_SECONDS = 1.0
"""Seconds after which a created RayJob is stale if the watch has not reported it."""


class Cache:
    """The latest state of each object that the watches have reported.

    Methods that set or drop an object return the key of its job, or None if nothing changed.
    kopf delivers the events of one object in order. If an object is deleted and another is created
    under the same name, their events may arrive in any order: the object created last wins.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, config: Config | None = None
    ) -> None:
        self._clock = clock
        self._platform = config.defaults if config else Cluster()
        self.admission_queue = AdmissionQueue(config.concurrency if config else Concurrency())
        self.changed: Callable[[JobView, JobView], None] = lambda *_: None
        """Called with the old and new state when an unfinished job changed, whoever changed it."""
        self._jobs: dict[Key, CompactJob] = {}
        self._ray_jobs: dict[Key, dict[str, RayJobView]] = {}
        self._last_event: dict[Key, float] = {}
        self._unsynced: set[Key] = set()
        """RayJobs that this process created and that the watch has not reported yet."""
        self._active_drivers: set[Key] = set()
        self.pods = PodCache(clock, self._ray_job_of_cluster)

    def set_job(self, body: Object) -> Key | None:
        job = JobView.of(body)
        key = job.key
        known = self._jobs.get(key)
        if _known(job, known) or _outlived(job, known):
            return None
        self.admission_queue.update(key, entry_of(job, self._platform))
        self._jobs[key] = CompactJob.of(job)
        same = known is not None and known.uid == job.uid
        if known is not None and same and not known.finished and job.managed:
            self.changed(known.job(), job)
        return key

    def set_written_job(self, body: Object) -> None:
        """Store a job as returned by a status write, before the watch reports it."""
        if key_of(body) in self._jobs:
            self.set_job(body)

    def delete_job(self, body: Object) -> Key:
        key = key_of(body)
        self.forget_job(key, body["metadata"]["uid"])
        return key

    def forget_job(self, key: Key, uid: str) -> None:
        """Forget a job that is gone, whether the watch reported its deletion or missed it."""
        if key in self._jobs and self._jobs[key].uid == uid:
            del self._jobs[key]
            self.admission_queue.update(key, None)
            self.pods.forget_job(key)

    def set_ray_job(self, body: Object) -> Key | None:
        key, view = parent_of(body), RayJobView.of(body)
        known = self._ray_jobs.setdefault(key, {})
        before = known.get(view.name)
        if _outlived(view, before):
            return None
        known[view.name] = view
        self._set_synced(key, view.name)
        self._update_usage(key)
        return None if view == before else key

    def add_ray_job(self, body: Object) -> None:
        """Store a RayJob that was just created, before the watch reports it."""
        key, name = parent_of(body), body["metadata"]["name"]
        if name not in self._ray_jobs.get(key, {}):
            self.set_ray_job(body)
            self._unsynced.add((key[0], name))

    def _set_synced(self, key: Key, name: str) -> None:
        self._last_event[key[0], name] = self._clock()
        self._unsynced.discard((key[0], name))

    def mark_deleting(self, key: Key, ray_job: RayJobView) -> None:
        """Mark a RayJob as being deleted. It is stale until the watch reports it."""
        known = self._ray_jobs.get(key, {})
        if known.get(ray_job.name) is ray_job:
            known[ray_job.name] = replace(ray_job, deleting=True)
            self._last_event[key[0], ray_job.name] = -inf
            self._update_usage(key)

    def _update_usage(self, key: Key) -> None:
        """Update what depends on the live RayJobs of a job.

        A RayJob that Kueue does not manage counts towards the concurrency limit. A job whose driver
        has started counts among the drivers that are polled.
        """
        known = self._ray_jobs.get(key, {}).values()
        live = [ray_job for ray_job in known if ray_job.owner_uid and not ray_job.ended]
        own = [ray_job for ray_job in live if not ray_job.queue]
        deleting = all(ray_job.deleting for ray_job in own)
        self.admission_queue.update_usage(key, bool(own), deleting)
        (
            self._active_drivers.add
            if any(ray_job.driver_started for ray_job in live)
            else self._active_drivers.discard
        )(key)

    def delete_ray_job(self, body: Object) -> Key:
        key, name = parent_of(body), body["metadata"]["name"]
        known = self._ray_jobs.get(key, {}).get(name)
        if known is not None and known.uid == body["metadata"]["uid"]:
            self._delete_ray_job(key, name)
        return key

    def _delete_ray_job(self, key: Key, name: str) -> None:
        ray_job = self._ray_jobs[key].pop(name)
        del self._last_event[key[0], name]
        self._unsynced.discard((key[0], name))
        if not self._ray_jobs[key]:
            del self._ray_jobs[key]
        self._update_usage(key)
        self.pods.forget_cluster(key, ray_job.cluster)

    def is_stale(self, namespace: str, ray_job: str) -> bool:
        """Return whether a known RayJob is stale: the watch was silent about it for too long."""
        known = namespace, ray_job
        last_event = self._last_event.get(known)
        limit = UNSYNCED_SECONDS if known in self._unsynced else STALE_SECONDS
        return last_event is not None and self._clock() - last_event > limit

    def refresh(self, key: Key, ray_job: RayJobView, body: Object | None) -> RayJobView | None:
        """Replace a stale RayJob with the result of a live read, and return the current RayJob.

        `body` is None if the RayJob is gone. The live read is ignored if the watch has reported
        something newer in the meantime.
        """
        known = self._ray_jobs.get(key, {})
        if known.get(ray_job.name) is not ray_job:
            return known.get(ray_job.name)
        if body is None:
            self._delete_ray_job(key, ray_job.name)
            return None
        known[ray_job.name] = RayJobView.of(body)
        self._set_synced(key, ray_job.name)
        self._update_usage(key)
        return known[ray_job.name]

    def is_current(self, job: JobView) -> bool:
        """Return whether the cache holds no newer version of a job."""
        known = self._jobs.get(job.key)
        return known is not None and known.resource_version == job.resource_version

    def ray_jobs(self, key: Key) -> tuple[RayJobView, ...]:
        """Return the RayJobs labelled with a job's name. The job itself may be gone."""
        return tuple(self._ray_jobs.get(key, {}).values())

    def _ray_job_of_cluster(self, key: Key, cluster: str) -> RayJobView | None:
        known = self._ray_jobs.get(key, {}).values()
        return next((ray_job for ray_job in known if ray_job.cluster == cluster), None)

    def observe(self, key: Key) -> Observed | None:
        """Return everything that is known of a job; None if it is gone."""
        compact = self._jobs.get(key)
        if compact is None:
            return None
        job = compact.job()
        ray_jobs, last = dict(self._ray_jobs.get(key, {})), job.status.get("rayJobName", "")
        pods, drivers = self.pods.of(key), len(self._active_drivers)
        synced = self._last_event.get((key[0], last), -inf) > -inf
        ray_job_synced = synced and (key[0], last) not in self._unsynced
        observed = Observed(job, ray_jobs, pods, ray_job_synced=ray_job_synced, drivers=drivers)
        disruptions = self.pods.disruptions(key, observed.cluster)
        crashes = self.pods.crashes(key, observed.cluster)
        return replace(observed, disruptions=disruptions, crashes=crashes)

    def uids(self) -> dict[Key, str]:
        """Return the uids of all known jobs."""
        return {key: job.uid for key, job in self._jobs.items()}

    def attempt(self, key: Key) -> int:
        """Return the number of a job's last attempt; 0 if there is none or the job is finished."""
        job = self._jobs.get(key)
        return 0 if job is None else job.attempt

    def summaries(self) -> Iterable[JobSummary]:
        """Return all jobs as the metrics count them."""
        return (job.summary for job in self._jobs.values())


def _known(job: JobView, known: CompactJob | None) -> bool:
    """Return whether this version of a job or a newer one is already known.

    The operator stores what it wrote before the watch reports it.
    """
    if known is None or known.uid != job.uid:
        return False
    return _order(job.resource_version) <= _order(known.resource_version)


def _outlived(view: JobView | RayJobView, known: CompactJob | RayJobView | None) -> bool:
    """Return whether an object of the same name that was created later is known."""
    return known is not None and known.uid != view.uid and _birth(view) < _birth(known)


def _birth(view: JobView | RayJobView | CompactJob) -> tuple[str, int, str]:
    """Return the sort key that orders objects of the same name by creation.

    Creation times have a resolution of one second. Within a second, all resource versions of the
    earlier object are lower than those of the later one.
    """
    return view.created_at, *_order("" if isinstance(view, RayJobView) else view.resource_version)


def _order(version: str) -> tuple[int, str]:
    """Return a sort key that compares resource versions as numbers of any length."""
    return len(version), version
