"""Watches: kopf calls these for every event, and all they do is to put a key on the queue.

kopf's event handlers leave no finalizer and no annotation on the object, and never retry; the queue
does that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from batchinference.rendering import NAME_LABEL
from batchinference.spec.job import GROUP, PLURAL, VERSION
from batchinference_operator.runtime.cache import Key
from batchinference_operator.runtime.controller import Controller
from batchinference_operator.status.observations import Object

Take = Callable[[Object], Key]


def register(registry: kopf.OperatorRegistry, controller: Controller) -> None:
    """Have all three kinds of objects watched, with the credentials of the pod or a kubeconfig."""
    cache = controller.cache

    def watch(set_object: Take, drop_object: Take) -> Callable[..., Any]:
        async def on_event(event: kopf.RawEvent, **_: Any) -> None:
            take = drop_object if event["type"] == "DELETED" else set_object
            controller.queue.add(take(dict(event["object"])))

        return on_event

    jobs = watch(cache.set_job, cache.drop_job)
    ray_jobs = watch(cache.set_ray_job, cache.drop_ray_job)
    pods = watch(cache.set_pod, cache.drop_pod)
    ours: Any = {NAME_LABEL: kopf.PRESENT}
    kopf.on.login(id="pod", registry=registry)(kopf.login_with_service_account)
    kopf.on.login(id="kubeconfig", registry=registry)(kopf.login_with_kubeconfig)
    kopf.on.event(GROUP, VERSION, PLURAL, id="jobs", registry=registry)(jobs)
    kopf.on.event("ray.io", "v1", "rayjobs", id="ray-jobs", labels=ours, registry=registry)(
        ray_jobs
    )
    kopf.on.event("", "v1", "pods", id="pods", labels=ours, registry=registry)(pods)


def configure(settings: kopf.OperatorSettings, *, clusterwide: bool) -> None:
    """kopf as a watcher and nothing else."""
    # looking out for new CustomResourceDefinitions takes rights in the whole cluster
    settings.scanning.disabled = not clusterwide
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.chunk_size = 500
    settings.watching.label_selectors["ray.io", "v1", "rayjobs"] = NAME_LABEL
    settings.watching.label_selectors["", "v1", "pods"] = NAME_LABEL
    settings.networking.request_timeout = 60
    settings.networking.connect_timeout = 10
    settings.queueing.idle_timeout = 0.2  # a watched object costs a task only while it changes
