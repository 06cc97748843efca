"""Loops beside the work queues: reload the policy, and forget jobs whose deletion was missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.job import KIND
from batchinference_operator.controller.job_controller import JobController
from batchinference_operator.controller.schedule_controller import ScheduleController
from batchinference_operator.kube.errors import Conflict, Refused

RELOAD_SECONDS = 10.0
"""Interval of reading the file. The kubelet updates it about a minute after its ConfigMap."""
logger = logging.getLogger("batchinference.operator")


async def reload_policy(
    controller: JobController, schedules: ScheduleController, read: Callable[[], PlatformPolicy]
) -> None:
    """Reload the policy every RELOAD_SECONDS until cancelled.

    The policy applies to attempts that have not started, and to the templates of schedules. If it
    cannot be read, the last policy remains in effect.
    """
    failure = ""
    while True:
        try:
            policy, failure = read(), ""
        except (OSError, ValueError) as error:
            if str(error) != failure:
                failure = str(error)
                logger.error("the policy is not reloaded: %s", failure)
        else:
            if policy != controller.config.policy:
                controller.config = replace(controller.config, policy=policy)
                schedules.change_config(controller.config)
                logger.info("the policy has changed")
        await asyncio.sleep(RELOAD_SECONDS)


RESYNC_SECONDS = 3600.0
logger = logging.getLogger("batchinference.operator")


async def resync(controller: JobController, namespaces: Sequence[str]) -> None:
    """Every RESYNC_SECONDS, forget the jobs that are gone. No namespaces means all namespaces.

    When a watch of kopf starts over, it does not report jobs that were deleted in the meantime. The
    next reconcile of an unfinished job finds that it is gone. Finished and suspended jobs are not
    reconciled, so they would stay in memory and in the metrics forever.
    """
    while True:
        await asyncio.sleep(RESYNC_SECONDS)
        for namespace in namespaces or [""]:
            try:
                await _forget_deleted(controller, namespace)
            except (Refused, Conflict) as problem:
                logger.warning("jobs cannot be listed: %s", problem)


async def _forget_deleted(controller: JobController, namespace: str) -> None:
    """Forget the cached jobs that the API server does not have. An empty namespace means all."""
    cached = controller.cache.uids().items()
    deleted = {key: uid for key, uid in cached if namespace in ("", key[0])}
    async for body in controller.api.list_all(KIND, namespace):
        key = body["metadata"]["namespace"], body["metadata"]["name"]
        if deleted.get(key) == body["metadata"]["uid"]:
            del deleted[key]
    for key, uid in deleted.items():
        controller.cache.forget_job(key, uid)
        controller.queue.add(key)
