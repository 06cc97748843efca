"""kopf handlers for the events of BatchInferences and BatchInferenceSchedules.

They update the cache, and add a key to the work queue if the event changes anything. Writes of the
operator are already in the cache. Event handlers of kopf set no finalizers or annotations and never
retry; the work queue retries.
"""

from __future__ import annotations

from typing import Any

import kopf

from batchinference.spec.job import GROUP, PLURAL, VERSION
from batchinference.spec.schedule import SCHEDULE_LABEL, SCHEDULE_PLURAL
from batchinference_operator.controller.controller import Controller
from batchinference_operator.controller.schedules import ScheduleController
from batchinference_operator.kube.api import PAGE
from batchinference_operator.kube.kopf_login import EndlessBackoffs, KopfLogin

STOP_SECONDS = 10.0
"""Seconds that kopf may take to stop before it kills the process."""


def register(
    registry: kopf.OperatorRegistry,
    controller: Controller,
    schedules: ScheduleController,
    login: KopfLogin,
) -> None:
    """Register the handlers."""
    cache = controller.cache

    async def for_job(event: kopf.RawEvent, **_: Any) -> None:
        update_cache = cache.delete_job if event["type"] == "DELETED" else cache.set_job
        controller.handle_event(update_cache, dict(event["object"]))

    async def for_schedule(event: kopf.RawEvent, **_: Any) -> None:
        schedules.handle_event(dict(event["object"]), deleted=event["type"] == "DELETED")

    kopf.on.login(id="login", registry=registry)(login.login)
    kopf.on.event(GROUP, VERSION, PLURAL, id="jobs", registry=registry)(for_job)
    of_schedule: Any = {SCHEDULE_LABEL: kopf.PRESENT}
    kopf.on.event(GROUP, VERSION, PLURAL, id="runs", labels=of_schedule, registry=registry)(
        for_schedule
    )
    kopf.on.event(GROUP, VERSION, SCHEDULE_PLURAL, id="schedules", registry=registry)(for_schedule)


class _NoDiffs(kopf.StatusDiffBaseStorage):
    """Disables kopf's diffs, which nothing reads and for which kopf would copy each object."""

    def build(self, **_: Any) -> Any:
        return {}


def configure(
    settings: kopf.OperatorSettings, *, clusterwide: bool, watch_seconds: int = 60
) -> None:
    """Configure kopf to watch objects and write nothing."""
    # detecting new CustomResourceDefinitions requires cluster-wide permissions
    settings.scanning.disabled = not clusterwide
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.watching.chunk_size = PAGE
    settings.watching.server_timeout = watch_seconds
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = EndlessBackoffs()
    # after a failed watch, kopf may hang while it stops, and the pod would never restart
    settings.process.ultimate_exiting_timeout = STOP_SECONDS
    settings.networking.connect_timeout = 10
    settings.queueing.idle_timeout = 0.2  # an object has a task only while it changes
