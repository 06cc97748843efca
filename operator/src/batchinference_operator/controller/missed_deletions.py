"""Forgets jobs whose deletion a watch has missed."""

import asyncio
import logging
from collections.abc import Sequence

from batchinference.spec.job import KIND
from batchinference_operator.controller.job_controller import JobController
from batchinference_operator.kube.api_errors import Conflict, Refused
from batchinference_operator.reconcile.job_view import key_of

RESYNC_SECONDS = 3600.0
logger = logging.getLogger("batchinference.operator")


async def resync(controller: JobController, namespaces: Sequence[str]) -> None:
    """Every RESYNC_SECONDS, forget the jobs that are gone. No namespaces means all namespaces.

    When a watch of kopf starts over, it does not report jobs that were deleted in the meantime. The
    next status write of an unfinished job finds that the job is gone. Finished and suspended jobs
    are not reconciled, so they would stay in memory and in the metrics forever.
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
        key = key_of(body)
        if deleted.get(key) == body["metadata"]["uid"]:
            del deleted[key]
    for key, uid in deleted.items():
        controller.cache.forget_job(key, uid)
        controller.queue.add(key)
