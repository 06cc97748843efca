"""The handlers and settings with which kopf runs.

kopf watches BatchInferences and BatchInferenceSchedules. The handlers update the cache, and add a
key to the work queue if an event changes anything. An event about a write of the operator changes
nothing, because the write is already in the cache. The handlers set no finalizers or annotations
and are not retried; the work queue retries.
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import kopf

from batchinference.rendering import MANAGER
from batchinference.spec.job import GROUP, PLURAL, VERSION
from batchinference.spec.schedule import SCHEDULE_LABEL, SCHEDULE_PLURAL
from batchinference_operator.controller.job_controller import JobController
from batchinference_operator.controller.schedule_controller import ScheduleController
from batchinference_operator.kube.kopf_session import EndlessBackoffs, KopfLogin
from batchinference_operator.kube.object_client import PAGE

KOPF_STOP_SECONDS = 10.0
"""Seconds that kopf may take to stop before it kills the process."""
logger = logging.getLogger("batchinference.operator")


def kopf_operator(
    controller: JobController,
    schedules: ScheduleController,
    login: KopfLogin,
    namespaces: Sequence[str],
    *,
    watch_seconds: int = 60,
    stop: Callable[[], None] = lambda: None,
) -> kopf.OperatorRegistry:
    """Return the handlers with which kopf runs. No namespaces means all namespaces. `stop` is
    called after SIGTERM, when kopf has ended its watches."""
    registry, cache = kopf.OperatorRegistry(), controller.cache
    of_schedule: Any = {SCHEDULE_LABEL: kopf.PRESENT}

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        _watch_only(settings, watch_seconds)
        # detecting new CustomResourceDefinitions requires cluster-wide permissions
        settings.scanning.disabled = bool(namespaces)

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        stop()

    @kopf.on.login(registry=registry)
    async def log_in(**options: Any) -> kopf.AiohttpSession | None:
        return await login.login(**options)

    @kopf.on.event(GROUP, VERSION, PLURAL, id="jobs", registry=registry)
    async def on_job(event: kopf.RawEvent, **_: Any) -> None:
        update_cache = cache.delete_job if event["type"] == "DELETED" else cache.set_job
        controller.handle_event(update_cache, dict(event["object"]))

    @kopf.on.event(GROUP, VERSION, PLURAL, id="runs", labels=of_schedule, registry=registry)
    @kopf.on.event(GROUP, VERSION, SCHEDULE_PLURAL, id="schedules", registry=registry)
    async def on_schedule(event: kopf.RawEvent, **_: Any) -> None:
        schedules.handle_event(dict(event["object"]), deleted=event["type"] == "DELETED")

    return registry


def run_kopf(
    registry: kopf.OperatorRegistry, namespaces: Sequence[str]
) -> Coroutine[None, None, None]:
    """Return the coroutine that runs kopf until SIGTERM."""
    return kopf.operator(
        registry=registry,
        namespaces=namespaces,
        clusterwide=not namespaces,
        standalone=True,
        # otherwise kopf looks up the user's name; the parameter's type is not public
        identity=MANAGER,  # type: ignore[arg-type]
    )


class _NoDiffs(kopf.StatusDiffBaseStorage):
    """Disables the diffs that kopf computes, because kopf would copy each object for them."""

    def build(self, **_: Any) -> Any:
        return {}


def _watch_only(settings: kopf.OperatorSettings, watch_seconds: int) -> None:
    """Configure kopf to watch objects and write nothing."""
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.watching.chunk_size = PAGE
    settings.watching.server_timeout = watch_seconds
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = EndlessBackoffs()
    # after a failed watch, kopf may hang while it stops, and the pod would never restart
    settings.process.ultimate_exiting_timeout = KOPF_STOP_SECONDS
    settings.networking.connect_timeout = 10
    settings.queueing.idle_timeout = 0.2  # seconds after which kopf ends the task of an object
