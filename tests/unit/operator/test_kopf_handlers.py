"""The handlers of kopf, and its settings."""

from __future__ import annotations

import inspect
from typing import Any

import kopf
import pytest

from batchinference.spec.schedule import SCHEDULE_LABEL
from batchinference_operator.controller.controller import Controller
from batchinference_operator.controller.kopf_handlers import configure, register
from batchinference_operator.controller.schedules import ScheduleController
from batchinference_operator.kube.api import PAGE
from batchinference_operator.kube.kopf_login import KopfLogin
from batchinference_operator.kube.watch_health import WatchHealth
from batchinference_operator.status.ray_job import Object
from support.operator.fake_cluster import FakeCluster, FakeKubeApi
from support.operator.fake_kuberay import FakeDriver
from support.operator.objects import CONFIG, NAMESPACE, job_body
from support.operator.virtual_time import in_virtual_time

Handlers = dict[str, Any]


def registered() -> tuple[Handlers, Controller, kopf.OperatorRegistry]:
    """Return kopf's handlers by id, the controller and kopf's registry."""
    controller = Controller(FakeKubeApi(FakeCluster()), FakeDriver(), CONFIG)
    schedules = ScheduleController(controller.api, CONFIG)
    registry, login = kopf.OperatorRegistry(), KopfLogin(WatchHealth([], 60), lambda *_: None)
    register(registry, controller, schedules, login)
    handlers = {str(found.id): found for found in registry._watching.get_all_handlers()}
    return handlers, controller, registry


def test_jobs_and_schedules_are_watched() -> None:
    handlers, _, _ = registered()
    runs = {SCHEDULE_LABEL: kopf.PRESENT}
    found = {name: (handler.selector, handler.labels) for name, handler in handlers.items()}
    assert {
        name: (selector.group, selector.version, selector.any_name, labels)
        for name, (selector, labels) in found.items()
    } == {
        "jobs": ("batchinference.dev", "v1beta1", "batchinferences", None),
        "runs": ("batchinference.dev", "v1beta1", "batchinferences", runs),
        "schedules": ("batchinference.dev", "v1beta1", "batchinferenceschedules", None),
    }


def test_only_event_handlers_are_registered() -> None:
    """Other handlers of kopf write finalizers and annotations, or keep all bodies in memory."""
    *_, registry = registered()
    for others in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert list(others.get_all_handlers()) == []


async def handle(handler: Any, kind: str | None, body: Object) -> None:
    """Pass an event to the handler as kopf does."""
    result = handler.fn(event={"type": kind, "object": body}, name="", body=body, logger=None)
    assert inspect.isawaitable(result)
    assert await result is None, "kopf would write a result into the status"


@pytest.mark.parametrize("kind", [None, "ADDED", "MODIFIED", "DELETED"])
@in_virtual_time
async def test_every_event_updates_the_cache_and_queues_the_job(kind: str | None) -> None:
    handlers, controller, _ = registered()
    await handle(handlers["jobs"], kind, job_body())
    assert (controller.cache.observe((NAMESPACE, "job")) is None) == (kind == "DELETED")
    assert len(controller.queue) == 1
    assert await controller.queue.get() == (NAMESPACE, "job")


@pytest.mark.parametrize("clusterwide", [True, False])
def test_crds_are_scanned_only_cluster_wide(clusterwide: bool) -> None:
    assert configured(clusterwide=clusterwide).scanning.disabled is not clusterwide


def configured(*, clusterwide: bool = True) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    configure(settings, clusterwide=clusterwide)
    return settings


def test_kopf_only_watches_and_lists_in_pages() -> None:
    settings = configured()
    assert settings.posting.enabled is False, "it may not create Events"
    assert settings.peering.standalone is True, "another kopf operator must not pause it"
    assert settings.queueing.worker_limit is None, "the queue limits the work"
    assert settings.watching.chunk_size == PAGE, "kopf would list everything at once"
