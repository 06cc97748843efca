"""The control loop: take a key from the work queue, observe, reconcile, act."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import inf

from batchinference.rendering import RAY_JOB, Backstop
from batchinference.spec.job import KIND
from batchinference_operator.controller.cache import Cache
from batchinference_operator.controller.driver_poller import Drivers
from batchinference_operator.controller.keys import Key, parent_of
from batchinference_operator.controller.observer import Observer
from batchinference_operator.controller.workqueue import WorkQueue
from batchinference_operator.kube.api import POD, Conflict, Invalid, KubeApi, Refused, Unreachable
from batchinference_operator.kube.reflector import Store
from batchinference_operator.observability.logging import log_context
from batchinference_operator.observability.telemetry import Telemetry
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.pending import CreateError, status_after_create_error
from batchinference_operator.reconcile.reconcile import reconcile
from batchinference_operator.reconcile.state import Actions, Observed
from batchinference_operator.reconcile.status_throttle import write_delay
from batchinference_operator.status.job_status import Status, merge_patch, without_newer_fields
from batchinference_operator.status.ray_job import Object
from batchinference_operator.status.timestamps import seconds_since, to_rfc3339

ORPHAN_SECONDS = 300.0
"""How long KubeRay may take to delete a RayJob of a deleted job."""
BACKLOG = 64
"""From this queue length on, creating objects takes precedence over writing statuses: the first
status of a job whose RayJob was just created is deferred by BACKLOG_SECONDS."""
BACKLOG_SECONDS = 10.0
LARGE_WRITE_SECONDS = 5.0
"""How long a status write to a job with a very large spec is deferred while another such write is
in progress. Each takes the API server seconds of CPU time. Several at a time would slow it down for
everyone, and would occupy all workers."""
logger = logging.getLogger("batchinference.operator")


def _now() -> datetime:
    return datetime.now(UTC)


CacheUpdate = Callable[[Object], Key | None]
"""Puts an object into the cache or removes it; returns the key of its job if anything changed."""


def _namespace(key: Key) -> str:
    return key[0]


@dataclass
class Controller:
    """Reconciles the jobs whose keys are in the work queue."""

    api: KubeApi
    drivers: Drivers
    config: Config
    cache: Cache = field(default_factory=Cache)
    queue: WorkQueue[Key] = field(default_factory=lambda: WorkQueue(flow=_namespace))
    now: Callable[[], datetime] = _now
    telemetry: Telemetry = field(default_factory=Telemetry)
    is_listed: Callable[[str], bool] = lambda _: True
    """Returns whether all RayJobs and pods of a namespace are known."""
    unlisted: set[Key] = field(default_factory=set)
    """Jobs that wait until it is true. Those that are gone may still have RayJobs."""
    last_write: dict[Key, datetime] = field(default_factory=dict)
    """When the status of each job was last written."""
    unreachable_since: dict[Key, datetime] = field(default_factory=dict)
    """Since when the API server has been unreachable for creating the objects of a job."""
    backstop_requests: dict[Key, tuple[str, Backstop]] = field(default_factory=dict)
    """The requested change of backstop deadlines that a job's RayJob does not show yet, with the
    RayJob's uid. It is requested only once, because an admission policy may reject or alter it."""
    accepted_dry_runs: dict[Key, str] = field(default_factory=dict)
    """The digest of the dry runs that the API server accepted, of each job whose RayJob does not
    exist yet. If creating it is refused, the next reconcile does not repeat them."""
    first_status_deferred: set[Key] = field(default_factory=set)
    """Jobs whose objects were created before their first status was written. If the objects must be
    created again before that, the job may be gone. The status write detects this, so it is not
    deferred a second time."""

    large_write: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a status write to a job with a very large spec."""

    def __post_init__(self) -> None:
        self.observer = Observer(self.api, self.cache, self.drivers, self.config, self.now)
        self.cache.admission_queue.wake = self.queue.add
        self.cache.changed = self.telemetry.changed
        self.drivers.answered = self.queue.add

    async def prime(self, namespaces: Sequence[str]) -> None:
        """List all jobs and RayJobs before any job starts, if there is a concurrency limit.

        Watches report objects one after the other. A job must not start only because it was
        reported first. No namespaces means all namespaces. Raises Refused.
        """
        if not self.config.concurrency.limited:
            return
        for namespace in namespaces or [""]:
            async for body in self.api.list_all(RAY_JOB, namespace):
                self._prime_with(self.cache.set_ray_job, body)
            async for body in self.api.list_all(KIND, namespace):
                self._prime_with(self.cache.set_job, body)

    def _prime_with(self, update_cache: CacheUpdate, body: Object) -> None:
        """Handle an event. A tenant's object that cannot be parsed does not stop the operator."""
        try:
            self.handle_event(update_cache, body)
        except Exception:
            logger.exception("an object cannot be read and is left out")

    def handle_event(self, update_cache: CacheUpdate, body: Object) -> None:
        """Update the cache with an object, and queue its job if anything changed."""
        if (key := update_cache(body)) is not None:
            self.queue.add(key)

    def requeue_unlisted(self, namespace: str) -> None:
        """Queue the keys of a namespace that wait for a list; of all if it is empty."""
        for key in [key for key in self.unlisted if namespace in ("", key[0])]:
            self.unlisted.remove(key)
            self.queue.add(key)

    async def work(self) -> None:
        """Run one worker until it is cancelled."""
        while True:
            key = await self.queue.get()
            if self.is_listed(key[0]):
                with log_context(*key, self.cache.attempt(key)):
                    await self._process(key)
            else:
                self._wait_for_list(key)

    def _wait_for_list(self, key: Key) -> None:
        """Let a job whose RayJobs and pods are not known yet wait for `requeue_unlisted`.

        It keeps its position in the admission queue.
        """
        self.unlisted.add(key)
        self.queue.done(key)

    async def _process(self, key: Key) -> None:
        try:
            with self.telemetry.measure_reconcile():
                await self._reconcile(key)
        except Conflict:
            self.queue.add_rate_limited(key)
        except Unreachable as error:
            delay = self.queue.add_rate_limited(key)
            logger.warning("the API server is unreachable: %s; retrying in %.1f s", error, delay)
        except Refused as error:
            delay = self.queue.add_rate_limited(key)
            logger.warning("rejected by the API server: %s; retrying in %.1f s", error, delay)
        except Exception:
            delay = self.queue.add_rate_limited(key)
            logger.exception("reconcile failed; retrying in %.1f s", delay)
        finally:
            if not self.queue.is_queued(key):  # it may have been admitted during the reconcile
                self.cache.admission_queue.skip(key)
            self.queue.done(key)

    async def _reconcile(self, key: Key) -> None:
        """Observe a job, compute the actions, and apply them."""
        observed = await self.observer.observe(key)
        if observed is None:
            await self._forget(key)
            return
        if self.config.concurrency.limited and not self.cache.is_current(observed.job):
            self.queue.add(key)
            return
        with self.queue.count_cpu_time(key):
            actions = self._decide(observed)
        self._update_admission(key, actions)
        ray_job_created = await self._apply(observed.job, actions)
        if ray_job_created:
            await self._reconcile(key)  # adopts the RayJob
            return
        requeue_after = await self._update_status(observed.job, actions)
        self.queue.forget(key)
        self.unreachable_since.pop(key, None)
        if requeue_after is not None:
            self.queue.add_after(key, requeue_after)

    async def _forget(self, key: Key) -> None:
        """Forget a job that is gone.

        A RayJob of it that is still being deleted after ORPHAN_SECONDS waits for KubeRay, which is
        unavailable: its cluster is deleted here.
        """
        self.queue.drop(key)
        self.last_write.pop(key, None)
        self.unreachable_since.pop(key, None)
        self.backstop_requests.pop(key, None)
        self.first_status_deferred.discard(key)
        self.accepted_dry_runs.pop(key, None)
        for ray_job in self.cache.ray_jobs(key):
            if not ray_job.deleting:
                continue
            if seconds_since(ray_job.deleted_at, self.now()) >= ORPHAN_SECONDS:
                await self.api.delete_ray_job(key[0], ray_job)
            self.queue.add_after(key, ORPHAN_SECONDS + 1)

    def _decide(self, observed: Observed) -> Actions:
        """Return the actions for a job.

        If reconcile fails because of the driver's report, the report is ignored: a driver must not
        be able to keep its job from its deadlines.
        """
        try:
            return reconcile(observed, self.config, self.now())
        except Exception:
            if observed.report is None:
                raise
            logger.exception("the driver's report is ignored")
        without = replace(observed, report=None, driver_reached=False)
        return reconcile(without, self.config, self.now())

    def _update_admission(self, key: Key, actions: Actions) -> None:
        queue = self.cache.admission_queue
        if actions.admits:
            queue.admit(key)
        elif actions.preempts:
            queue.preempt(key)
        else:
            queue.release(key)

    async def _apply(self, job: JobView, actions: Actions) -> bool:
        """Carry out the actions except for the status. Return whether a RayJob was created."""
        for ray_job in actions.stop_drivers:
            self.drivers.stop(job.key, ray_job, self.config.tokens(job, ray_job.name))
        for ray_job in actions.delete_ray_jobs:
            await self.api.delete_ray_job(job.namespace, ray_job)
            self.cache.mark_deleting(job.key, ray_job, to_rfc3339(self.now()))
            if not ray_job.deleting:
                logger.info("deleted RayJob %s", ray_job.name)
        try:
            await self._validate(job.key, actions.dry_run)
            ray_job_created = await self._create(actions.create)
        except Refused as error:
            await self._report_create_error(job, error)
            raise
        for ray_job in actions.release_clusters:
            await self.api.release_cluster(job.namespace, ray_job)
            logger.info("released the cluster of RayJob %s", ray_job.name)
        await self._update_backstop(job, actions)
        if actions.delete_job:
            await self.api.delete_job(*job.key, job.uid, job.resource_version)
            logger.info("deleted the BatchInference after ttl.afterFinished")
        return ray_job_created

    async def _validate(self, key: Key, objects: Sequence[Sequence[tuple[str, Object]]]) -> None:
        """Validate the last version of each object by a dry run, unless it was accepted before.

        Raises Invalid with the field of the first version that the API server rejects.
        """
        if not objects:
            return
        digest = hashlib.sha256(json.dumps(objects).encode()).hexdigest()
        if self.accepted_dry_runs.get(key) == digest:
            return
        for versions in objects:
            try:
                await self.api.dry_run(*versions[-1])
            except Invalid:
                for field, body in versions[:-1]:
                    await self.api.dry_run(field, body)
                raise
        self.accepted_dry_runs[key] = digest

    async def _create(self, bodies: Sequence[Object]) -> bool:
        """Create objects. Return whether a RayJob was created.

        An object that exists already was created by a reconcile that was interrupted.
        """
        ray_job_created = False
        for body in bodies:
            created = await self.api.create(body)
            if created is not None and body["kind"] == RAY_JOB:
                logger.info("created RayJob %s", body["metadata"]["name"])
                self.cache.add_ray_job(created)
                self.accepted_dry_runs.pop(parent_of(created), None)
                ray_job_created = True
        return ray_job_created

    async def _update_status(self, job: JobView, actions: Actions) -> float | None:
        """Write the status, or defer the write. Return the seconds until the job is requeued."""
        if actions.status is None:
            return actions.requeue_after
        if (delay := self._write_delay(job, actions, actions.status)) > 0:
            self.telemetry.count_status_write("deferred")
            return delay
        async with self.large_write if job.unread else nullcontext():
            await self._write(job, actions.status)
        return actions.requeue_after

    async def _update_backstop(self, job: JobView, actions: Actions) -> None:
        """Change the backstop deadlines of a RayJob. If that fails, the job continues."""
        if actions.update_backstop is None:
            self.backstop_requests.pop(job.key, None)
            return
        ray_job, backstop = actions.update_backstop
        change = (ray_job.uid, backstop)
        if self.backstop_requests.get(job.key) == change:
            return
        try:
            await self.api.set_backstop(job.namespace, ray_job, backstop)
        except (Unreachable, Conflict) as error:
            logger.warning(
                "the deadlines of RayJob %s are not changed yet: %s", ray_job.name, error
            )
            return
        except Refused as error:
            logger.warning("the deadlines of RayJob %s are not changed: %s", ray_job.name, error)
        self.backstop_requests[job.key] = change

    async def _report_create_error(self, job: JobView, error: Refused) -> None:
        """Write to the status why the objects of a job cannot be created."""
        seconds = None
        if isinstance(error, Unreachable):
            since = self.unreachable_since.setdefault(job.key, self.now())
            seconds = (self.now() - since).total_seconds()
        field = error.field if isinstance(error, Invalid) else ""
        reason = CreateError(str(error), seconds, field)
        status = status_after_create_error(job, reason, self.now())
        if status is not None:
            await self._write(job, status)

    def _write_delay(self, job: JobView, actions: Actions, status: Status) -> float:
        """Return for how many seconds to defer the status write.

        The reconcile after that computes the status again.
        """
        if job.unread and self.large_write.locked() and merge_patch(job.status, status):
            return LARGE_WRITE_SECONDS
        # only if there is no status yet: an existing one would be wrong in the meantime
        first = "phase" not in job.status and job.key not in self.first_status_deferred
        if first and actions.create and len(self.queue) >= BACKLOG:
            self.first_status_deferred.add(job.key)
            return BACKLOG_SECONDS
        last_write = self.last_write.get(job.key)
        since = inf if last_write is None else (self.now() - last_write).total_seconds()
        delay = write_delay(job.status, status, since)
        if delay <= 0 or not merge_patch(job.status, status):
            return 0.0
        return delay if actions.requeue_after is None else min(delay, actions.requeue_after)

    async def _patch(self, job: JobView, version: str, patch: Status) -> Object | None:
        """Write a status patch and return the job as stored; None if the job is gone.

        If the CustomResourceDefinition is older than the operator and rejects the patch, only the
        fields that it knows are written: a status that is never written would block the job.
        """
        try:
            return await self.api.patch_status(*job.key, version, patch)
        except Invalid as error:
            reduced = without_newer_fields(patch)
            if reduced == patch:
                raise
            logger.warning("%s; the status is written without what is unknown", error)
            self.telemetry.rejected(job, str(error))
            return await self.api.patch_status(*job.key, version, reduced)

    async def _write(self, job: JobView, status: Status) -> None:
        patch, key = merge_patch(job.status, status), job.key
        if not patch:
            self.telemetry.count_status_write("unchanged")
            return
        version = job.resource_version
        try:
            stored = await self._patch(job, version, patch)
        except Conflict:
            self.telemetry.count_status_write("conflict")
            raise
        self.first_status_deferred.discard(key)
        if stored is None:
            self.telemetry.count_status_write("gone")
            self.last_write.pop(key, None)
            self.cache.forget_job(key, job.uid)
            return
        self.cache.set_written_job(stored)
        self.last_write[key] = self.now()
        self.telemetry.count_status_write("written")
        if "phase" in patch:
            logger.info("phase %s", patch["phase"])


def stores(controller: Controller) -> dict[str, Store]:
    """Return the stores of the watched kinds: the cache, and the work queue for each change."""
    cache = controller.cache

    def store(
        put: CacheUpdate,
        delete: CacheUpdate,
        known: Callable[[str], list[Object]],
        listed: Callable[[str, str], None] = lambda *_: None,
    ) -> Store:
        put_object = partial(controller.handle_event, put)
        delete_object = partial(controller.handle_event, delete)
        return Store(put_object, delete_object, known, listed, controller.requeue_unlisted)

    return {
        RAY_JOB: store(
            cache.set_ray_job, cache.delete_ray_job, cache.known_ray_jobs, cache.set_ray_job_version
        ),
        POD: store(cache.pods.set_pod, cache.pods.delete_pod, cache.pods.known),
    }
