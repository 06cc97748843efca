"""The loop: take a key, observe, reconcile, act."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from batchinference_operator.reconcile.model import Actions, Observed
from batchinference_operator.reconcile.reconcile import (
    Settings,
    finished,
    names_of,
    reconcile,
    wants_report,
)
from batchinference_operator.runtime.cache import Cache, Key
from batchinference_operator.runtime.driver import Driver
from batchinference_operator.runtime.gateway import Conflict, Gateway
from batchinference_operator.runtime.queue import KeyedQueue
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.status import merge_patch

logger = logging.getLogger("batchinference.operator")


@dataclass
class Controller:
    """Looks at jobs whose keys are in the queue."""

    gateway: Gateway
    driver: Driver
    settings: Settings
    cache: Cache = field(default_factory=Cache)
    queue: KeyedQueue[Key] = field(default_factory=KeyedQueue)

    async def work(self) -> None:
        """One worker; it ends when it is cancelled."""
        while True:
            key = await self.queue.get()
            try:
                await self._look(key)
            except Conflict:
                self.queue.retry(key)
            except Exception:
                delay = self.queue.retry(key)
                logger.exception("%s/%s: trying again in %.1f s", *key, delay)
            finally:
                self.queue.done(key)

    async def _look(self, key: Key) -> None:
        observed = self.cache.observe(key)
        if observed is None:
            self.queue.forget(key)
            return
        observed = await self._observe_more(observed)
        actions = reconcile(observed, self.settings, datetime.now(UTC))
        await self._act(observed, actions)
        self.queue.forgive(key)
        if actions.again_after is not None:
            self.queue.add_after(key, actions.again_after)

    async def _observe_more(self, observed: Observed) -> Observed:
        """What the watches do not tell: a RayJob that they have not shown yet, and the driver."""
        job = observed.job
        if observed.ray_job is None and not finished(job) and job.status:
            body = await self.gateway.ray_job(job.namespace, names_of(job).ray_job)
            observed = replace(observed, ray_job=RayJobView.of(body) if body else None)
        if wants_report(observed) and observed.ray_job is not None:
            token = self.settings.token(job.uid)
            answer = await self.driver.ask(job.namespace, observed.ray_job, token)
            observed = replace(observed, report=answer.report, driver_reached=answer.reached)
        return observed

    async def _act(self, observed: Observed, actions: Actions) -> None:
        job = observed.job
        for body in actions.create:
            await self.gateway.create(body)
            logger.info("%s/%s: created %s %s", job.namespace, job.name, body["kind"],
                        body["metadata"]["name"])  # fmt: skip
        if actions.release is not None:
            await self.gateway.release(job.namespace, actions.release)
            logger.info("%s/%s: released the cluster of %s", job.namespace, job.name,
                        actions.release)  # fmt: skip
        patch = merge_patch(job.status, actions.status) if actions.status is not None else {}
        if patch:
            await self.gateway.patch_status(job.namespace, job.name, job.resource_version, patch)
            if "phase" in patch:
                logger.info("%s/%s: %s", job.namespace, job.name, patch["phase"])


async def run_workers(controller: Controller, count: int) -> None:
    """So many workers until the task is cancelled."""
    await asyncio.gather(*(controller.work() for _ in range(count)))
