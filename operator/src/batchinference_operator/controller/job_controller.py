"""The control loop of jobs: take a key from the work queue, observe, reconcile, act."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from math import inf

from batchinference.rendering import HEAD_BUDGET, RAY_JOB, KubeRayDeadlines
from batchinference.spec.job import KIND
from batchinference_operator.controller.cache import Cache
from batchinference_operator.controller.driver_poller import DriverPoller
from batchinference_operator.controller.event_reader import EventReader
from batchinference_operator.controller.notifier import Notifier
from batchinference_operator.controller.observer import Observer
from batchinference_operator.controller.reconcile_retries import retry_failures
from batchinference_operator.controller.work_queue import WorkQueue
from batchinference_operator.kube.api_errors import Conflict, Refused, Unreachable
from batchinference_operator.kube.kube_client import KubeClient
from batchinference_operator.kube.object_client import POD
from batchinference_operator.kube.reflector import Store
from batchinference_operator.observability.event_recorder import EventRecorder
from batchinference_operator.observability.logging import log_context
from batchinference_operator.reconcile.cluster_tokens import cluster_tokens
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.create_errors import status_after_create_error
from batchinference_operator.reconcile.job_view import JobKey, JobView
from batchinference_operator.reconcile.kueue import rejection_hint
from batchinference_operator.reconcile.observed_and_actions import SILENT, Actions, Observed
from batchinference_operator.reconcile.ray_job_deletion import end_orphans
from batchinference_operator.reconcile.reconcile import reconcile
from batchinference_operator.reconcile.status_write_delay import write_delay
from batchinference_operator.status.attempts import attempt_number
from batchinference_operator.status.job_events import events_between
from batchinference_operator.status.job_status import Status, merge_patch
from batchinference_operator.status.ray_job_view import Object
from batchinference_operator.status.timestamps import Clock, to_rfc3339, utc_now

LARGE_WRITE_SECONDS = 5.0
"""Seconds by which the status write of a job with a very large spec is deferred during another such
write. Each such write takes seconds of CPU time in the API server. Several at once would slow the
server down and occupy all workers."""
logger = logging.getLogger("batchinference.operator")
CacheUpdate = Callable[[Object], JobKey | None]
"""Stores or removes an object in the cache. Returns the key of its job; None if unchanged."""


@dataclass
class JobController:
    """Reconciles the jobs whose keys are in the work queue."""

    api: KubeClient
    drivers: DriverPoller
    config: Config
    recorder: EventRecorder
    cache: Cache
    queue: WorkQueue[JobKey] = field(default_factory=WorkQueue)
    now: Clock = utc_now
    is_listed: Callable[[str], bool] = lambda _: True
    """Returns whether the cache has all RayJobs and pods of a namespace."""
    is_refused: Callable[[str], bool] = lambda _: False
    """Returns whether the RayJobs or pods of a namespace cannot be listed."""
    jobs_waiting_for_list: set[JobKey] = field(default_factory=set)
    """Jobs that wait until their namespace is listed. Some may be gone and still have RayJobs."""
    last_write: dict[JobKey, datetime] = field(default_factory=dict)
    """When the status of each job was last written."""
    unreachable_since: dict[JobKey, datetime] = field(default_factory=dict)
    """When the creation of a job's objects first failed because of an unreachable API server."""
    deadline_requests: dict[JobKey, tuple[str, KubeRayDeadlines]] = field(default_factory=dict)
    """The uid of each job's RayJob, and KubeRay's deadlines that were last requested for it. The
    request is not repeated, because an admission policy may reject or change it."""
    large_status_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during the status write of a job with a very large spec."""

    def __post_init__(self) -> None:
        self.notifier = Notifier(self.api, lambda: self.config.policy, self.queue.add)
        self.observer = Observer(
            self.api, self.cache, self.drivers, self.config, EventReader(self.api, now=self.now)
        )
        self.cache.admission_queue.wake = self.queue.add
        self.cache.on_change = self._publish_changes
        self.status_writes = self.recorder.metrics.status_writes
        self.drivers.answered = self.queue.add

    def _publish_changes(self, before: JobView, job: JobView) -> None:
        """Publish the changes of a status as metrics and Events. Both statuses come from the cache,
        because the response to a write may be lost. A status that a user has written, such as a
        failed attempt without a cause, must not prevent a reconcile."""
        try:
            metrics = self.recorder.metrics.jobs
            metrics.record_status_change(job.namespace, before.status, job.status)
            events = events_between(before.status, job.status)
            self.recorder.record(job, attempt_number(job.status), events)
        except Exception:
            logger.exception("a change of the status is not published")

    async def prime(self, namespaces: Sequence[str]) -> None:
        """If there is a concurrency limit, list all jobs and RayJobs before any job starts.

        Without these lists, the order of the first events would decide which jobs start. No
        namespaces means all namespaces. Raises Refused.
        """
        if not self.config.concurrency.has_limit:
            return
        for namespace in namespaces or [""]:
            async for body in self.api.list_all(RAY_JOB, namespace):
                self.handle_event(self.cache.set_ray_job, body)
            async for body in self.api.list_all(KIND, namespace):
                self.handle_event(self.cache.set_job, body)

    def handle_event(self, update_cache: CacheUpdate, body: Object) -> None:
        """Update the cache with an object, and queue its job if anything changed. An invalid object
        of a tenant is logged, and does not stop the operator."""
        try:
            if (key := update_cache(body)) is not None:
                self.queue.add(key)
        except Exception:
            own = body.get("metadata", {})
            name = f"{own.get('namespace')}/{own.get('name')}" if isinstance(own, dict) else ""
            logger.exception("the object %s cannot be read and is skipped", name)

    def requeue_waiting_for_list(self, namespace: str) -> None:
        """Queue the jobs of a namespace that wait for a list; an empty namespace means all."""
        for key in [key for key in self.jobs_waiting_for_list if namespace in ("", key[0])]:
            self.jobs_waiting_for_list.remove(key)
            self.queue.add(key)

    async def work(self) -> None:
        """Run one worker until it is cancelled."""
        while True:
            key = await self.queue.get()
            if self.is_listed(key[0]):
                with log_context(*key, self.cache.attempt_number(key)):
                    await self._process(key)
            else:
                self._wait_for_list(key)

    def _wait_for_list(self, key: JobKey) -> None:
        """Let a job wait for `requeue_waiting_for_list`. If its namespace cannot be listed, the
        admission queue lets other jobs start meanwhile."""
        self.jobs_waiting_for_list.add(key)
        if self.is_refused(key[0]):
            self.cache.admission_queue.skip(key)
        self.queue.done(key)

    async def _process(self, key: JobKey) -> None:
        try:
            with retry_failures(self.queue, key, self.recorder.metrics):
                await self._reconcile(key)
        finally:
            if not self.queue.is_queued(key):  # a job that is queued again keeps its turn
                self.cache.admission_queue.skip(key)
            self.queue.done(key)

    async def _reconcile(self, key: JobKey) -> None:
        """Observe a job, compute the actions, and apply them."""
        observed = await self.observer.observe(key)
        if observed is None:
            await self._forget(key)
            return
        if self.config.concurrency.has_limit and not self.cache.is_current(observed.job):
            self.queue.add(key)
            return
        observed = replace(observed, notified=self.notifier.results(observed.job))
        with self.queue.count_cpu_time(key):
            actions = self._decide(observed)
        if actions.notify:
            self.notifier.start(observed.job)
        elif observed.notified is None:
            self.notifier.forget(key)
        ray_job_created = await self._apply(observed.job, actions)
        if ray_job_created:
            await self._reconcile(key)  # the second reconcile adopts the RayJob
            return
        requeue_after = await self._update_status(observed.job, actions)
        self.queue.forget(key)
        self.unreachable_since.pop(key, None)
        if requeue_after is not None:
            self.queue.add_after(key, requeue_after)

    async def _forget(self, key: JobKey) -> None:
        """Forget a job that is gone, and end its RayJobs that KubeRay does not delete."""
        self.last_write.pop(key, None)
        self.unreachable_since.pop(key, None)
        self.deadline_requests.pop(key, None)
        self.notifier.forget(key)
        ray_jobs = self.cache.ray_jobs(key)  # users may set the label by which these are found
        orphans = [one for one in ray_jobs if one.deleting and one.owner_uid is not None]
        actions = end_orphans(orphans, self.now())
        for orphan in actions.delete_ray_jobs:
            await self.api.delete_ray_job(key[0], orphan)
        self.queue.drop(key)
        if actions.requeue_after is not None:
            self.queue.add_after(key, actions.requeue_after)

    def _decide(self, observed: Observed) -> Actions:
        """Return the actions for a job.

        If reconcile fails and there is a driver's report, reconcile is repeated without the report.
        Otherwise a driver could disable the deadlines of its job.
        """
        try:
            return reconcile(observed, self.config, self.now())
        except Exception:
            if observed.report is None:
                raise
            logger.exception("the driver's report is ignored")
        return reconcile(replace(observed, answer=SILENT), self.config, self.now())

    async def _apply(self, job: JobView, actions: Actions) -> bool:
        """Carry out all actions but `notify` and `status`. Return whether a RayJob was created."""
        for ray_job in actions.stop_drivers:
            self.drivers.stop(job.key, ray_job, cluster_tokens(self.config, job, ray_job.name))
        for ray_job in actions.delete_ray_jobs:
            await self.api.delete_ray_job(job.namespace, ray_job)
            self.cache.mark_deleting(job.key, ray_job, to_rfc3339(self.now()))
            if not ray_job.deleting:
                logger.info("deleted RayJob %s", ray_job.name)
        try:
            # if the job is admitted, it deletes no RayJob. So the loop above has awaited nothing,
            # and no other job was admitted since the decision
            if actions.admits:
                self.cache.admission_queue.admit(job.key)
            ray_job_created = await self._create(actions.create)
        except Refused as error:
            await self._report_create_error(job, error)
            raise
        await self._change_ray_jobs(job, actions)
        if actions.delete_job:
            await self.api.delete_job(*job.key, job.uid, resourceVersion=job.resource_version)
            logger.info("deleted the BatchInference after ttl.afterFinished")
        return ray_job_created

    async def _change_ray_jobs(self, job: JobView, actions: Actions) -> None:
        """Change existing RayJobs, and delete or shrink their clusters."""
        for ray_job in actions.release_clusters:
            await self.api.release_cluster(job.namespace, ray_job)
            logger.info("released the cluster of RayJob %s", ray_job.name)
        for ray_job in actions.remove_workers:
            # if this is refused, the cluster is deleted earlier than one without workers
            with _logged_errors(f"the workers of RayJob {ray_job.name} cannot be removed", Refused):
                await self.api.remove_workers(job.namespace, ray_job)
        await self._update_deadlines(job, actions)
        if (gated := actions.release_pods) is not None:
            what = f"the gated pods of RayJob {gated.name} are not released"
            with _logged_errors(what, Conflict, Refused):
                await self.api.release_pods(job.namespace, gated, to_rfc3339(self.now()))

    async def _create(self, bodies: Sequence[Object]) -> bool:
        """Create objects. Return whether a RayJob was created.

        An object that already exists was created by an interrupted reconcile. If the API server
        refuses the PodDisruptionBudget, the job runs without it. The operator's role may be of an
        earlier version.
        """
        ray_job_created = False
        for body in bodies:
            try:
                created = await self.api.create(body)
            except Refused as error:
                if body["kind"] != HEAD_BUDGET or isinstance(error, Unreachable):
                    raise
                logger.warning("the head is not protected from drains: %s", error)
                continue
            if created is not None and body["kind"] == RAY_JOB:
                logger.info("created RayJob %s", body["metadata"]["name"])
                self.cache.add_ray_job(created)
                ray_job_created = True
        return ray_job_created

    async def _update_status(self, job: JobView, actions: Actions) -> float | None:
        """Write the status and return `requeue_after`, or return the seconds to defer the write."""
        if actions.status is None:
            return actions.requeue_after
        if (delay := self._write_delay(job, actions, actions.status)) > 0:
            self.status_writes.labels("deferred").inc()
            return delay
        async with self.large_status_lock if job.skipped_reason else nullcontext():
            await self._write(job, actions.status)
        return actions.requeue_after

    async def _update_deadlines(self, job: JobView, actions: Actions) -> None:
        """Change KubeRay's deadlines of a RayJob. If that fails, the job continues."""
        if actions.update_deadlines is None:
            self.deadline_requests.pop(job.key, None)
            return
        ray_job, deadlines = actions.update_deadlines
        change = (ray_job.uid, deadlines)
        if self.deadline_requests.get(job.key) == change:
            return
        try:
            await self.api.set_deadlines(job.namespace, ray_job, deadlines)
        except (Conflict, Refused) as error:
            yet = " yet" if isinstance(error, Conflict | Unreachable) else ""
            what = f"the deadlines of RayJob {ray_job.name} are not changed{yet}"
            logger.warning("%s: %s", what, error)
            if yet:
                return
        self.deadline_requests[job.key] = change

    async def _report_create_error(self, job: JobView, error: Refused) -> None:
        """Report in the status why the objects of a job cannot be created."""
        message, seconds = str(error), None
        if isinstance(error, Unreachable):
            since = self.unreachable_since.setdefault(job.key, self.now())
            seconds = (self.now() - since).total_seconds()
        elif "kueue" in message:
            queues = await self.api.local_queues(job.namespace)
            message += rejection_hint(job, message, queues, self.config.defaults.queue_name)
        status = status_after_create_error(job, message, seconds, self.now())
        if status is not None:
            await self._write(job, status)

    def _write_delay(self, job: JobView, actions: Actions, status: Status) -> float:
        """Return the seconds by which to defer the status write to a later reconcile."""
        if not merge_patch(job.status, status):
            return 0.0
        if job.skipped_reason and self.large_status_lock.locked():
            return LARGE_WRITE_SECONDS
        last_write = self.last_write.get(job.key)
        since = inf if last_write is None else (self.now() - last_write).total_seconds()
        delay = write_delay(job.status, status, since)
        return delay if actions.requeue_after is None else min(delay, actions.requeue_after)

    async def _write(self, job: JobView, status: Status) -> None:
        patch, key = merge_patch(job.status, status), job.key
        if not patch:
            self.status_writes.labels("unchanged").inc()
            return
        with self.status_writes.labels("conflict").count_exceptions(Conflict):
            stored = await self.api.patch_status(*key, job.resource_version, patch)
        if stored is None:
            self.status_writes.labels("gone").inc()
            self.last_write.pop(key, None)
            self.cache.forget_job(key, job.uid)
            return
        self.cache.set_written_job(stored)
        self.last_write[key] = self.now()
        self.status_writes.labels("written").inc()
        if "phase" in patch:
            logger.info("phase %s", patch["phase"])


@contextmanager
def _logged_errors(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Log an error of the block as a warning if it is of these kinds, so that the job continues."""
    try:
        yield
    except kinds as error:
        logger.warning("%s: %s", what, error)


def stores(controller: JobController) -> dict[str, Store]:
    """Return the store of each reflector, by kind. A store updates the cache and queues jobs."""
    cache, requeue = controller.cache, controller.requeue_waiting_for_list
    return {
        RAY_JOB: Store(
            partial(controller.handle_event, cache.set_ray_job),
            partial(controller.handle_event, cache.delete_ray_job),
            cache.ray_job_stubs,
            cache.set_ray_job_version,
            requeue,
        ),
        POD: Store(
            partial(controller.handle_event, cache.pods.set_pod),
            partial(controller.handle_event, cache.pods.delete_pod),
            cache.pods.stubs,
            lambda *_: None,
            requeue,
        ),
    }
