"""The handlers of kopf, and its settings."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import kopf
import pytest
from kopf._core.intents.causes import Activity

from batchinference.spec.schedule import SCHEDULE_LABEL
from batchinference_operator.controller.cache import Cache
from batchinference_operator.controller.job_controller import JobController
from batchinference_operator.controller.kopf_handlers import kopf_operator, run_kopf
from batchinference_operator.controller.schedule_controller import ScheduleController
from batchinference_operator.kube.kopf_session import KopfLogin
from batchinference_operator.kube.object_client import PAGE
from batchinference_operator.kube.watch_health import WatchHealth
from batchinference_operator.observability.event_recorder import EventRecorder
from batchinference_operator.observability.metrics import Metrics
from batchinference_operator.status.ray_job_view import Object
from support.operator.fake_cluster import FakeCluster, FakeKubeApi
from support.operator.fake_kuberay import FakeDriver
from support.operator.objects import CONFIG, NAMESPACE, job_body
from support.operator.virtual_time import in_virtual_time, wall_clock

Handlers = dict[str, Any]
STOPPED = asyncio.Event()
"""Set when kopf has cleaned up."""


def registered(*namespaces: str) -> tuple[Handlers, JobController, kopf.OperatorRegistry]:
    """Return kopf's handlers by id, the controller and kopf's registry."""
    api = FakeKubeApi(FakeCluster())
    recorder = EventRecorder(api, Metrics(), wall_clock)
    controller = JobController(api, FakeDriver(), CONFIG, recorder, Cache(CONFIG))
    schedules = ScheduleController(api, CONFIG, controller.recorder)
    login = KopfLogin(WatchHealth([], 60), lambda *_: None)
    registry = kopf_operator(controller, schedules, login, namespaces, stop=STOPPED.set)
    handlers = {str(handler.id): handler for handler in registry._watching.get_all_handlers()}
    return handlers, controller, registry


def test_jobs_and_schedules_are_watched() -> None:
    handlers, _, _ = registered()
    runs = {SCHEDULE_LABEL: kopf.PRESENT}
    by_name = {name: (handler.selector, handler.labels) for name, handler in handlers.items()}
    assert {
        name: (selector.group, selector.version, selector.any_name, labels)
        for name, (selector, labels) in by_name.items()
    } == {
        "jobs": ("batchinference.dev", "v1beta1", "batchinferences", None),
        "runs": ("batchinference.dev", "v1beta1", "batchinferences", runs),
        "schedules": ("batchinference.dev", "v1beta1", "batchinferenceschedules", None),
    }


async def test_job_with_a_status_of_a_user_is_reconciled() -> None:
    """Only `number` and `rayJobName` of an attempt are required."""
    handlers, controller, _ = registered()
    await handlers["jobs"].fn(event={"type": "ADDED", "object": job_body()})
    controller.queue.done(await controller.queue.get())
    attempt = {"number": 1, "rayJobName": "job-1", "outcome": "Failed"}
    written = job_body(status={"attempts": [attempt], "attempt": 1}, resourceVersion="2")
    await handlers["jobs"].fn(event={"type": "MODIFIED", "object": written})
    assert controller.queue.is_queued((NAMESPACE, "job"))


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


async def configured(*namespaces: str) -> kopf.OperatorSettings:
    """Return the settings after the startup handler."""
    settings, (*_, registry) = kopf.OperatorSettings(), registered(*namespaces)
    for handler in registry._activities.get_all_handlers():
        if handler.activity is Activity.STARTUP:
            await handler.fn(settings=settings)
    return settings


@pytest.mark.parametrize("namespaces", [(), ("team",)], ids=["all", "one"])
async def test_crds_are_scanned_only_cluster_wide(namespaces: tuple[str, ...]) -> None:
    assert (await configured(*namespaces)).scanning.disabled is bool(namespaces)


async def test_kopf_only_watches_and_lists_in_pages() -> None:
    settings = await configured()
    assert settings.posting.enabled is False, "it may not create Events"
    assert settings.queueing.worker_limit is None, "the queue limits the work"
    assert settings.watching.chunk_size == PAGE, "kopf would list everything at once"


async def test_kopf_starts_logs_in_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleanup ends the workers, which kopf does not know."""
    logged_in = asyncio.Event()

    async def login(_: KopfLogin, **__: Any) -> None:
        logged_in.set()

    monkeypatch.setattr(KopfLogin, "login", login)
    STOPPED.clear()
    *_, registry = registered("team")
    running = asyncio.create_task(run_kopf(registry, ["team"]))
    async with asyncio.timeout(20):
        await logged_in.wait()
        with pytest.raises(kopf.LoginError):  # it has no credentials, and therefore ends
            await running
    assert STOPPED.is_set()
