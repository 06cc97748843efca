"""What the watches have told, in as little memory as reconcile can do with."""

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
    """The last word of the watches on each object.

    What sets or drops an object returns the key of its job, if that tells anything new.
    kopf hands on the events of one object in their order, but those of two objects that bore the
    same name one after the other in any order: the object that was created last counts.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, settings: Settings | None = None
    ) -> None:
        self._clock = clock
        self._platform = settings.defaults if settings else Cluster()
        self.turns = Turns(settings.concurrency if settings else Concurrency())
        self.changed: Callable[[JobView, JobView], None] = lambda *_: None
        """Is told of each job that goes on and of which something newer is known, by whomever."""
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
        """A job as its status was written, ahead of the watch."""
        if key_of(body) in self._jobs:
            self.set_job(body)

    def drop_job(self, body: Object) -> Key:
        key = key_of(body)
        self.forget(key, body["metadata"]["uid"])
        return key

    def forget(self, key: Key, uid: str) -> None:
        """A job that is gone, whether the watch has told of it or has missed it."""
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
        """A RayJob as it was created, ahead of the watch. It is in doubt until that tells of it."""
        key, name = parent_of(body), body["metadata"]["name"]
        if name not in self._ray_jobs.get(key, {}):
            self.set_ray_job(body)
            self._heard[key[0], name] = -inf

    def removed(self, key: Key, seen: RayJobView) -> None:
        """A RayJob as it is once its deletion was asked for, ahead of the watch; it is in doubt."""
        known = self._ray_jobs.get(key, {})
        if known.get(seen.name) is seen:
            known[seen.name] = replace(seen, deleting=True)
            self._heard[key[0], seen.name] = -inf

    def _see_pods(self, key: Key) -> None:
        """What runs without Kueue's leave counts among those that may run at a time, and what has
        a driver among those that are asked."""
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
        """Whether the watch has said nothing of a RayJob that it showed once for too long."""
        heard = self._heard.get((namespace, ray_job))
        return heard is not None and self._clock() - heard > DOUBT_SECONDS

    def confirm(self, key: Key, seen: RayJobView, body: Object | None) -> RayJobView | None:
        """Put what was looked up in the place of what was in doubt, unless the watch has told
        something newer in between. Returns what holds now."""
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
        """Whether nothing newer was seen of a job since."""
        known = self._jobs.get(job.key)
        return known is not None and known.resource_version == job.resource_version

    def ray_jobs(self, key: Key) -> tuple[RayJobView, ...]:
        """Those under the name of a job, which may be gone itself."""
        return tuple(self._ray_jobs.get(key, {}).values())

    def _above(self, key: Key, cluster: str) -> RayJobView | None:
        known = self._ray_jobs.get(key, {}).values()
        return next((seen for seen in known if seen.cluster == cluster), None)

    def observe(self, key: Key) -> Observed | None:
        """All that is known of a job; None when it is gone."""
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
        """Of all jobs that are known."""
        return {key: job.uid for key, job in self._jobs.items()}

    def attempt(self, key: Key) -> int:
        """The number of the last attempt at a job; 0 when there was none, or it is finished."""
        job = self._jobs.get(key)
        return 0 if job is None else job.attempt

    def phases(self) -> Counter[str]:
        """Jobs by their phase."""
        return Counter(job.phase for job in self._jobs.values())


def _known(job: JobView, known: PackedJob | None) -> bool:
    """Whether this was told before, or something newer: what is written is known ahead of what the
    watch tells."""
    if known is None or known.uid != job.uid:
        return False
    return _order(job.resource_version) <= _order(known.resource_version)


def _outlived(view: JobView | RayJobView, known: PackedJob | RayJobView | None) -> bool:
    """Whether a later object of the same name is known."""
    return known is not None and known.uid != view.uid and _birth(view) < _birth(known)


def _birth(view: JobView | RayJobView | PackedJob) -> tuple[str, int, str]:
    """What orders objects of one name. Times have whole seconds; within one the versions of the
    first are all below those of the second."""
    return view.created_at, *_order("" if isinstance(view, RayJobView) else view.resource_version)


def _order(version: str) -> tuple[int, str]:
    """Versions are compared as numbers of any length."""
    return len(version), version
