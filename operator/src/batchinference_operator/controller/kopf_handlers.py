"""The watch handlers, which kopf calls for every event.

They update the cache, and add a key to the work queue if the event changes anything. Changes that
the operator made itself are already in the cache. kopf's event handlers leave no finalizer and no
annotation on the object and never retry; the work queue retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from batchinference.rendering import NAME_LABEL
from batchinference.spec.job import GROUP, PLURAL, VERSION
from batchinference.spec.schedule import SCHEDULE_LABEL, SCHEDULE_PLURAL
from batchinference_operator.controller.controller import CacheUpdate, Controller
from batchinference_operator.controller.schedules import ScheduleController
from batchinference_operator.kube.api import PAGE
from batchinference_operator.kube.kopf_login import KopfLogin

STOP_SECONDS = 10.0
"""Seconds that kopf may take to stop before the process is killed."""


def register(
    registry: kopf.OperatorRegistry,
    controller: Controller,
    schedules: ScheduleController,
    login: KopfLogin,
) -> None:
    """Register the watches of BatchInferences, BatchInferenceSchedules, RayJobs and pods."""
    cache = controller.cache

    def watch(set_object: CacheUpdate, delete_object: CacheUpdate) -> Callable[..., Any]:
        async def on_event(event: kopf.RawEvent, **_: Any) -> None:
            update_cache = delete_object if event["type"] == "DELETED" else set_object
            controller.handle_event(update_cache, dict(event["object"]))

        return on_event

    async def for_schedule(event: kopf.RawEvent, **_: Any) -> None:
        schedules.handle_event(dict(event["object"]), deleted=event["type"] == "DELETED")

    jobs = watch(cache.set_job, cache.delete_job)
    ray_jobs = watch(cache.set_ray_job, cache.delete_ray_job)
    pods = watch(cache.pods.set_pod, cache.pods.delete_pod)
    ours: Any = {NAME_LABEL: kopf.PRESENT}
    kopf.on.login(id="login", registry=registry)(login.login)
    kopf.on.event(GROUP, VERSION, PLURAL, id="jobs", registry=registry)(jobs)
    of_schedule: Any = {SCHEDULE_LABEL: kopf.PRESENT}
    kopf.on.event(GROUP, VERSION, PLURAL, id="runs", labels=of_schedule, registry=registry)(
        for_schedule
    )
    kopf.on.event(GROUP, VERSION, SCHEDULE_PLURAL, id="schedules", registry=registry)(for_schedule)
    kopf.on.event("ray.io", "v1", "rayjobs", id="ray-jobs", labels=ours, registry=registry)(
        ray_jobs
    )
    kopf.on.event("", "v1", "pods", id="pods", labels=ours, registry=registry)(pods)


class _NoDiffs(kopf.StatusDiffBaseStorage):
    """Disables kopf's diffs: it would copy each object to compute a diff that nothing reads."""

    def build(self, **_: Any) -> Any:
        return {}


def configure(
    settings: kopf.OperatorSettings, *, clusterwide: bool, watch_seconds: int = 60
) -> None:
    """Configure kopf to do nothing but watch."""
    # detecting new CustomResourceDefinitions requires cluster-wide permissions
    settings.scanning.disabled = not clusterwide
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.watching.chunk_size = PAGE
    settings.watching.label_selectors["ray.io", "v1", "rayjobs"] = NAME_LABEL
    settings.watching.label_selectors["", "v1", "pods"] = NAME_LABEL
    settings.watching.server_timeout = watch_seconds
    settings.networking.request_timeout = 60
    # kopf may hang while stopping after a watch failed, and the pod would never restart
    settings.process.ultimate_exiting_timeout = STOP_SECONDS
    settings.networking.connect_timeout = 10
    settings.queueing.idle_timeout = 0.2  # an object has a task only while it changes
