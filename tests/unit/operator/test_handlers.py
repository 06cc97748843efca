"""What is watched, and what an event sets in motion."""

from __future__ import annotations

import inspect
from typing import Any

import kopf
import pytest

from batchinference.rendering import NAME_LABEL
from batchinference_operator.runtime.controller import Controller
from batchinference_operator.runtime.gateway import PAGE
from batchinference_operator.runtime.handlers import configure, register
from batchinference_operator.runtime.metrics import Metrics
from batchinference_operator.runtime.watches import Login, Watches
from batchinference_operator.status.observations import Object
from support.operator.fake_cluster import FakeCluster, FakeGateway
from support.operator.fake_kuberay import FakeDriver
from support.operator.objects import (
    NAMESPACE,
    SETTINGS,
    job_body,
    pod_body,
    ray_job_body,
    waiting,
)
from support.operator.virtual_time import in_virtual_time

Handlers = dict[str, Any]
STUCK = pod_body(**waiting("ImagePullBackOff"))
BODIES = {"jobs": job_body(), "ray-jobs": ray_job_body(), "pods": STUCK}


def registered() -> tuple[Handlers, Controller, kopf.OperatorRegistry]:
    """kopf's handlers by their ids."""
    controller = Controller(FakeGateway(FakeCluster()), FakeDriver(), SETTINGS)
    registry = kopf.OperatorRegistry()
    register(registry, controller, Login(Watches([], 60), Metrics()))
    handlers = {str(found.id): found for found in registry._watching.get_all_handlers()}
    return handlers, controller, registry


def test_three_kinds_are_watched() -> None:
    handlers, _, _ = registered()
    assert {
        name: (handler.selector.group, handler.selector.version, handler.selector.any_name)
        for name, handler in handlers.items()
    } == {
        "jobs": ("batchinference.dev", "v1alpha1", "batchinferences"),
        "ray-jobs": ("ray.io", "v1", "rayjobs"),
        "pods": ("", "v1", "pods"),
    }


def test_of_ray_jobs_and_pods_only_ours_are_watched() -> None:
    handlers, _, _ = registered()
    ours = {NAME_LABEL: kopf.PRESENT}
    assert handlers["jobs"].labels is None
    assert handlers["ray-jobs"].labels == ours
    assert handlers["pods"].labels == ours


def test_nothing_is_registered_that_leaves_a_trace_on_the_object() -> None:
    """kopf's other handlers put finalizers and annotations there, or keep all bodies in memory."""
    *_, registry = registered()
    for others in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert list(others.get_all_handlers()) == []


async def take(handler: Any, kind: str | None, body: Object) -> None:
    """What kopf does with an event."""
    result = handler.fn(event={"type": kind, "object": body}, name="", body=body, logger=None)
    assert inspect.isawaitable(result)
    assert await result is None, "kopf would write a result into the status"


@pytest.mark.parametrize("kind", [None, "ADDED", "MODIFIED", "DELETED"])
@pytest.mark.parametrize("watch", ["jobs", "ray-jobs", "pods"])
@in_virtual_time
async def test_every_event_puts_the_jobs_key_on_the_queue(watch: str, kind: str | None) -> None:
    handlers, controller, _ = registered()
    await take(handlers[watch], kind, BODIES[watch])
    assert len(controller.queue) == 1
    assert await controller.queue.get() == (NAMESPACE, "job")


@in_virtual_time
async def test_events_keep_the_cache_true() -> None:
    handlers, controller, _ = registered()
    for watch, body in BODIES.items():
        await take(handlers[watch], None, body)
    observed = controller.cache.observe((NAMESPACE, "job"))
    assert observed is not None
    assert set(observed.ray_jobs) == {"job-1"}
    assert len(observed.pods) == 1
    await take(handlers["pods"], "DELETED", BODIES["pods"])
    await take(handlers["ray-jobs"], "DELETED", BODIES["ray-jobs"])
    observed = controller.cache.observe((NAMESPACE, "job"))
    assert observed is not None
    assert (observed.ray_jobs, observed.pods) == ({}, ())
    await take(handlers["jobs"], "DELETED", BODIES["jobs"])
    assert controller.cache.observe((NAMESPACE, "job")) is None


# --- kopf's settings --------------------------------------------------------------------


@pytest.mark.parametrize("clusterwide", [True, False])
def test_crds_are_scanned_only_cluster_wide(clusterwide: bool) -> None:
    settings = kopf.OperatorSettings()
    configure(settings, clusterwide=clusterwide)
    assert settings.scanning.disabled is not clusterwide


def test_kopf_only_watches() -> None:
    settings = kopf.OperatorSettings()
    configure(settings, clusterwide=True)
    assert settings.posting.enabled is False, "it may not create Events"
    assert settings.peering.standalone is True, "another kopf operator must not pause it"
    assert settings.queueing.worker_limit is None, "the queue limits the work; this limits news"


def test_kopf_lists_in_pages() -> None:
    settings = kopf.OperatorSettings()
    configure(settings, clusterwide=True)
    assert settings.watching.chunk_size == PAGE, "kopf would ask for everything at once"


@pytest.mark.parametrize(
    ("group", "plural", "expected"),
    [
        ("ray.io", "rayjobs", [NAME_LABEL]),
        ("", "pods", [NAME_LABEL]),
        ("batchinference.dev", "batchinferences", []),
    ],
)
def test_the_api_server_itself_leaves_out_what_is_not_ours(
    group: str, plural: str, expected: list[str]
) -> None:
    settings = kopf.OperatorSettings()
    configure(settings, clusterwide=True)
    version = "v1alpha1" if "batch" in group else "v1"
    resource = kopf.Resource(group, version, plural, namespaced=True)
    assert settings.watching.label_selectors.collect(resource) == expected
