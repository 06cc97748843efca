"""The informer cache: what reconcile needs of each watched object, in little memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import inf

from batchinference.spec.cluster import Cluster
from batchinference_operator.reconcile.model import JobView, Observed
from batchinference_operator.reconcile.settings import Settings
from batchinference_operator.reconcile.standing import stand_of
from batchinference_operator.reconcile.turns import Concurrency, Turns
from batchinference_operator.runtime.keys import Key, key_of, parent_of
from batchinference_operator.runtime.packed_job import PackedJob
from batchinference_operator.runtime.pod_cache import DOUBT_SECONDS, PodCache
from batchinference_operator.status.observations import Object, RayJobView


class Cache:
    """The latest state of each object that the watches have reported.

    Methods that set or drop an object return the key of its job, or None if nothing changed.
    kopf delivers the events of one object in order. If an object is deleted and another is created
    under the same name, their events may arrive in any order: the object created last wins.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, settings: Settings | None = None
    ) -> None:
        self._clock = clock
        self._platform = settings.defaults if settings else Cluster()
        self.turns = Turns(settings.concurrency if settings else Concurrency())
        self.changed: Callable[[JobView, JobView], None] = lambda *_: None
        """Called with the old and new state when an unfinished job changed, whoever changed it."""
        self._jobs: dict[Key, PackedJob] = {}
        self._ray_jobs: dict[Key, dict[str, RayJobView]] = {}
        self._heard: dict[Key, float] = {}
        self._driven: set[Key] = set()
        self.pods = PodCache(clock, self._above)

    def set_job(self, body: Object) -> Key | None:
        job = JobView.of(body)
        key = job.key
        known = self._jobs.get(key)
        if _known(job, known) or _outlived(job, known):
            return None
        self.turns.see(key, stand_of(job, self._platform))
        self._jobs[key] = PackedJob.of(job)
        if known is not None and known.uid == job.uid and not known.finished:
            self.changed(known.job(), job)
        return key

    def wrote(self, body: Object) -> None:
        """Store a job as returned by a status write, before the watch reports it."""
        if key_of(body) in self._jobs:
            self.set_job(body)

    def drop_job(self, body: Object) -> Key:
        key = key_of(body)
        self.forget(key, body["metadata"]["uid"])
        return key

    def forget(self, key: Key, uid: str) -> None:
        """Forget a job that is gone, whether the watch reported its deletion or missed it."""
        if key in self._jobs and self._jobs[key].uid == uid:
            del self._jobs[key]
            self.turns.see(key, None)
            self.pods.forget(key)

    def set_ray_job(self, body: Object) -> Key | None:
        key, view = parent_of(body), RayJobView.of(body)
        known = self._ray_jobs.setdefault(key, {})
        before = known.get(view.name)
        if _outlived(view, before):
            return None
        known[view.name] = view
        self._heard[key[0], view.name] = self._clock()
        self._see_pods(key)
        return None if view == before else key

    def made(self, body: Object) -> None:
        """Store a RayJob that was just created. It is stale until the watch reports it."""
        key, name = parent_of(body), body["metadata"]["name"]
        if name not in self._ray_jobs.get(key, {}):
            self.set_ray_job(body)
            self._heard[key[0], name] = -inf

    def removed(self, key: Key, seen: RayJobView) -> None:
        """Mark a RayJob as being deleted. It is stale until the watch reports it."""
        known = self._ray_jobs.get(key, {})
        if known.get(seen.name) is seen:
            known[seen.name] = replace(seen, deleting=True)
            self._heard[key[0], seen.name] = -inf

    def _see_pods(self, key: Key) -> None:
        """Update what depends on the live RayJobs of a job.

        A RayJob that Kueue does not manage counts towards the concurrency limit. A job whose driver
        has started counts among the drivers that are polled.
        """
        known = self._ray_jobs.get(key, {}).values()
        live = [seen for seen in known if seen.owner_uid and not seen.ended]
        self.turns.see_pods(key, any(not seen.queue for seen in live))
        (self._driven.add if any(seen.driver_started for seen in live) else self._driven.discard)(
            key
        )

    def drop_ray_job(self, body: Object) -> Key:
        key, name = parent_of(body), body["metadata"]["name"]
        known = self._ray_jobs.get(key, {}).get(name)
        if known is not None and known.uid == body["metadata"]["uid"]:
            self._drop_ray_job(key, name)
        return key

    def _drop_ray_job(self, key: Key, name: str) -> None:
        seen = self._ray_jobs[key].pop(name)
        del self._heard[key[0], name]
        if not self._ray_jobs[key]:
            del self._ray_jobs[key]
        self._see_pods(key)
        self.pods.forget_cluster(key, seen.cluster)

    def doubtful(self, namespace: str, ray_job: str) -> bool:
        """Return whether a known RayJob is stale: the watch was silent about it for too long."""
        heard = self._heard.get((namespace, ray_job))
        return heard is not None and self._clock() - heard > DOUBT_SECONDS

    def confirm(self, key: Key, seen: RayJobView, body: Object | None) -> RayJobView | None:
        """Replace a stale RayJob with the result of a live read, and return the current RayJob.

        `body` is None if the RayJob is gone. The live read is ignored if the watch has reported
        something newer in the meantime.
        """
        known = self._ray_jobs.get(key, {})
        if known.get(seen.name) is not seen:
            return known.get(seen.name)
        if body is None:
            self._drop_ray_job(key, seen.name)
            return None
        known[seen.name] = RayJobView.of(body)
        self._heard[key[0], seen.name] = self._clock()
        self._see_pods(key)
        return known[seen.name]

    def is_current(self, job: JobView) -> bool:
        """Return whether the cache holds no newer version of a job."""
        known = self._jobs.get(job.key)
        return known is not None and known.resource_version == job.resource_version

    def ray_jobs(self, key: Key) -> tuple[RayJobView, ...]:
        """Return the RayJobs labelled with a job's name. The job itself may be gone."""
        return tuple(self._ray_jobs.get(key, {}).values())

    def _above(self, key: Key, cluster: str) -> RayJobView | None:
        known = self._ray_jobs.get(key, {}).values()
        return next((seen for seen in known if seen.cluster == cluster), None)

    def observe(self, key: Key) -> Observed | None:
        """Return everything that is known of a job; None if it is gone."""
        packed = self._jobs.get(key)
        if packed is None:
            return None
        job = packed.job()
        ray_jobs, last = dict(self._ray_jobs.get(key, {})), job.status.get("rayJobName", "")
        pods, drivers = self.pods.of(key), len(self._driven)
        watched = self._heard.get((key[0], last), -inf) > -inf
        observed = Observed(job, ray_jobs, pods, watched=watched, drivers=drivers)
        losses = self.pods.losses(key, observed.cluster)
        crashes = self.pods.crashes(key, observed.cluster)
        return replace(observed, losses=losses, crashes=crashes)

    def uids(self) -> dict[Key, str]:
        """Return the uids of all known jobs."""
        return {key: job.uid for key, job in self._jobs.items()}

    def attempt(self, key: Key) -> int:
        """Return the number of a job's last attempt; 0 if there is none or the job is finished."""
        job = self._jobs.get(key)
        return 0 if job is None else job.attempt

    def phases(self) -> Counter[str]:
        """Return the number of jobs in each phase."""
        return Counter(job.phase for job in self._jobs.values())


def _known(job: JobView, known: PackedJob | None) -> bool:
    """Return whether this version of a job or a newer one is already known.

    The operator stores what it wrote before the watch reports it.
    """
    if known is None or known.uid != job.uid:
        return False
    return _order(job.resource_version) <= _order(known.resource_version)


def _outlived(view: JobView | RayJobView, known: PackedJob | RayJobView | None) -> bool:
    """Return whether an object of the same name that was created later is known."""
    return known is not None and known.uid != view.uid and _birth(view) < _birth(known)


def _birth(view: JobView | RayJobView | PackedJob) -> tuple[str, int, str]:
    """Return the sort key that orders objects of the same name by creation.

    Creation times have a resolution of one second. Within a second, all resource versions of the
    earlier object are lower than those of the later one.
    """
    return view.created_at, *_order("" if isinstance(view, RayJobView) else view.resource_version)


def _order(version: str) -> tuple[int, str]:
    """Return a sort key that compares resource versions as numbers of any length."""
    return len(version), version
