"""The loop: take a key, observe, reconcile, act."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from batchinference_operator.reconcile.model import Actions, JobView, Observed
from batchinference_operator.reconcile.reconcile import (
    Settings,
    names_of,
    reconcile,
    refused,
    settled,
    wants_report,
)
from batchinference_operator.runtime.cache import Cache, Key
from batchinference_operator.runtime.driver import Driver
from batchinference_operator.runtime.gateway import Conflict, Gateway, Refused
from batchinference_operator.runtime.queue import KeyedQueue
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.status import Status, merge_patch

logger = logging.getLogger("batchinference.operator")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Controller:
    """Looks at jobs whose keys are in the queue."""

    gateway: Gateway
    driver: Driver
    settings: Settings
    cache: Cache = field(default_factory=Cache)
    queue: KeyedQueue[Key] = field(default_factory=KeyedQueue)
    now: Callable[[], datetime] = _now

    async def work(self) -> None:
        """One worker; it ends when it is cancelled."""
        while True:
            key = await self.queue.get()
            try:
                await self._look(key)
            except Conflict:
                self.queue.retry(key)
            except Refused as words:
                delay = self.queue.retry(key)
                logger.warning("%s/%s: refused: %s; trying again in %.1f s", *key, words, delay)
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
        actions = reconcile(observed, self.settings, self.now())
        await self._act(observed.job, actions)
        self.queue.forgive(key)
        if actions.again_after is not None:
            self.queue.add_after(key, actions.again_after)

    async def _observe_more(self, observed: Observed) -> Observed:
        """What the watches do not tell: a RayJob of which they are silent, and the driver."""
        job = observed.job
        if settled(job):
            return observed
        observed = replace(observed, ray_job=await self._ray_job(job, observed.ray_job))
        if wants_report(observed) and observed.ray_job is not None:
            token = self.settings.token(job.uid)
            answer = await self.driver.ask(job.namespace, observed.ray_job, token)
            observed = replace(observed, report=answer.report, driver_reached=answer.reached)
        return observed

    async def _ray_job(self, job: JobView, seen: RayJobView | None) -> RayJobView | None:
        name = names_of(job).ray_job
        if seen is None and job.status:  # without a status, none was created
            body = await self.gateway.ray_job(job.namespace, name)
            return RayJobView.of(body) if body else None
        if seen is not None and self.cache.doubtful(job.namespace, name):
            body = await self.gateway.ray_job(job.namespace, name)
            return self.cache.confirm(job.namespace, seen, body)
        return seen

    async def _act(self, job: JobView, actions: Actions) -> None:
        try:
            await self._create(job, actions)
        except Refused as words:
            await self._write(job, refused(job, str(words), self.now()))
            raise
        if actions.release is not None:
            await self.gateway.release(job.namespace, actions.release)
            logger.info("%s/%s: released the cluster of %s", job.namespace, job.name,
                        actions.release)  # fmt: skip
        if actions.status is not None:
            await self._write(job, actions.status)

    async def _create(self, job: JobView, actions: Actions) -> None:
        for body in actions.create:
            await self.gateway.create(body)
            logger.info("%s/%s: created %s %s", job.namespace, job.name, body["kind"],
                        body["metadata"]["name"])  # fmt: skip

    async def _write(self, job: JobView, status: Status) -> None:
        patch = merge_patch(job.status, status)
        if not patch:
            return
        version = job.resource_version
        if not await self.gateway.patch_status(job.namespace, job.name, version, patch):
            self.cache.forget(job)
        elif "phase" in patch:
            logger.info("%s/%s: %s", job.namespace, job.name, patch["phase"])
