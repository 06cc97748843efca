"""What the watches have told, in as little memory as reconcile can do with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from batchinference.rendering import NAME_LABEL
from batchinference_operator.reconcile.model import JobView, Observed
from batchinference_operator.reconcile.reconcile import finished, names_of
from batchinference_operator.status.observations import Object, PodView, RayJobView

Key = tuple[str, str]
"""Namespace and name of a BatchInference."""

DOUBT_SECONDS = 300.0
"""How long the watch may say nothing of a RayJob before it is looked up. A watch that has to begin
anew tells what exists, not what has gone meanwhile."""


class Cache:
    """The last word of the watches on each object.

    kopf hands on the events of one object in their order, but those of two objects that bore the
    same name one after the other in any order: the object that was created last counts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: dict[Key, JobView] = {}
        self._ray_jobs: dict[Key, RayJobView] = {}
        self._heard: dict[Key, float] = {}
        self._pods: dict[Key, dict[str, PodView]] = {}

    def set_job(self, body: Object) -> Key:
        job = job_view(body)
        key = job.namespace, job.name
        if not _outlived(job, self._jobs.get(key)):
            self._jobs[key] = _only_the_end(job) if finished(job) else job
        return key

    def drop_job(self, body: Object) -> Key:
        key, uid = _key(body), body["metadata"]["uid"]
        self._forget(key, uid)
        return key

    def forget(self, job: JobView) -> None:
        """A job whose end the watch has missed."""
        self._forget((job.namespace, job.name), job.uid)

    def _forget(self, key: Key, uid: str) -> None:
        if key in self._jobs and self._jobs[key].uid == uid:
            del self._jobs[key]
            self._pods.pop(key, None)

    def set_ray_job(self, body: Object) -> Key:
        key, view = _key(body), RayJobView.of(body)
        if not _outlived(view, self._ray_jobs.get(key)):
            self._ray_jobs[key] = view
            self._heard[key] = self._clock()
        return _parent(body)

    def drop_ray_job(self, body: Object) -> Key:
        key = _key(body)
        known = self._ray_jobs.get(key)
        if known is not None and known.uid == body["metadata"]["uid"]:
            self._drop_ray_job(key)
        return _parent(body)

    def _drop_ray_job(self, key: Key) -> None:
        del self._ray_jobs[key], self._heard[key]

    def doubtful(self, namespace: str, ray_job: str) -> bool:
        """Whether the watch has said nothing of a RayJob that it showed once for too long."""
        heard = self._heard.get((namespace, ray_job))
        return heard is not None and self._clock() - heard > DOUBT_SECONDS

    def confirm(self, namespace: str, seen: RayJobView, body: Object | None) -> RayJobView | None:
        """Put what was looked up in the place of what was in doubt, unless the watch has told
        something newer in between. Returns what holds now."""
        key = namespace, seen.name
        if self._ray_jobs.get(key) is not seen:
            return self._ray_jobs.get(key)
        if body is None:
            self._drop_ray_job(key)
        else:
            self._ray_jobs[key] = RayJobView.of(body)
            self._heard[key] = self._clock()
        return self._ray_jobs.get(key)

    def set_pod(self, body: Object) -> Key:
        """Only pods in trouble are kept: no decision reads the others."""
        key, view = _parent(body), PodView.of(body)
        if view.trouble is None:
            return self.drop_pod(body)
        self._pods.setdefault(key, {})[view.name] = view
        return key

    def drop_pod(self, body: Object) -> Key:
        key = _parent(body)
        pods = self._pods.get(key, {})
        pods.pop(body["metadata"]["name"], None)
        if not pods:
            self._pods.pop(key, None)
        return key

    def observe(self, key: Key) -> Observed | None:
        """All that is known of a job; None when it is gone."""
        job = self._jobs.get(key)
        if job is None:
            return None
        ray_job = self._ray_jobs.get((job.namespace, names_of(job).ray_job))
        pods = tuple(view for _, view in sorted(self._pods.get(key, {}).items()))
        return Observed(job, ray_job, pods)


def job_view(body: Object) -> JobView:
    metadata = body["metadata"]
    return JobView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        resource_version=metadata["resourceVersion"],
        spec=body.get("spec", {}),
        status=body.get("status", {}),
        created_at=metadata.get("creationTimestamp", ""),
        deleting="deletionTimestamp" in metadata,
    )


def _only_the_end(job: JobView) -> JobView:
    """Of a finished job nothing else is read, and there may be thousands."""
    ends = [{"type": c["type"], "status": c["status"]} for c in job.status["conditions"]]
    return replace(job, spec={}, status={"conditions": ends})


def _outlived(view: JobView | RayJobView, known: JobView | RayJobView | None) -> bool:
    """Whether a later object of the same name is known."""
    return known is not None and known.uid != view.uid and view.created_at < known.created_at


def _key(body: Object) -> Key:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _parent(body: Object) -> Key:
    metadata = body["metadata"]
    return metadata["namespace"], metadata["labels"][NAME_LABEL]
