"""What the watches have told, in as little memory as reconcile can do with."""

from __future__ import annotations

from dataclasses import replace

from batchinference.rendering import NAME_LABEL
from batchinference_operator.reconcile.model import JobView, Observed
from batchinference_operator.reconcile.reconcile import finished, names_of
from batchinference_operator.status.observations import Object, PodView, RayJobView

Key = tuple[str, str]
"""Namespace and name of a BatchInference."""


class Cache:
    """The last word of the watches on each object."""

    def __init__(self) -> None:
        self._jobs: dict[Key, JobView] = {}
        self._ray_jobs: dict[Key, RayJobView] = {}
        self._pods: dict[Key, dict[str, PodView]] = {}

    def set_job(self, body: Object) -> Key:
        job = job_view(body)
        key = job.namespace, job.name
        self._jobs[key] = replace(job, spec={}) if finished(job) else job
        return key

    def drop_job(self, body: Object) -> Key:
        key = body["metadata"]["namespace"], body["metadata"]["name"]
        self._jobs.pop(key, None)
        return key

    def set_ray_job(self, body: Object) -> Key:
        view = RayJobView.of(body)
        self._ray_jobs[body["metadata"]["namespace"], view.name] = view
        return _parent(body)

    def drop_ray_job(self, body: Object) -> Key:
        self._ray_jobs.pop((body["metadata"]["namespace"], body["metadata"]["name"]), None)
        return _parent(body)

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
    )


def _parent(body: Object) -> Key:
    metadata = body["metadata"]
    return metadata["namespace"], metadata["labels"][NAME_LABEL]
