"""The control loop: take a key from the work queue, observe, reconcile, act."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf

from batchinference.rendering import RAY_JOB, Backstop
from batchinference.spec.job import KIND
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.beginning import AWAY_SECONDS, away, refused
from batchinference_operator.reconcile.following import created, ray_job_of, wants_report
from batchinference_operator.reconcile.looks import poll_pace
from batchinference_operator.reconcile.model import Actions, JobView, Observed
from batchinference_operator.reconcile.pacing import hold
from batchinference_operator.reconcile.reconcile import reconcile, settled
from batchinference_operator.reconcile.settings import Settings
from batchinference_operator.runtime.cache import Cache
from batchinference_operator.runtime.doubts import Doubts
from batchinference_operator.runtime.gateway import Conflict, Gateway, Invalid, Refused, Unreachable
from batchinference_operator.runtime.keys import Key
from batchinference_operator.runtime.logs import about
from batchinference_operator.runtime.pod_cache import DOUBT_SECONDS
from batchinference_operator.runtime.polling import Drivers
from batchinference_operator.runtime.queue import KeyedQueue
from batchinference_operator.runtime.signals import Signals
from batchinference_operator.runtime.words import Words
from batchinference_operator.status.observations import Object, RayJobView
from batchinference_operator.status.status import Status, merge_patch, understood

BACKLOG = 64
"""From this queue length on, creating objects takes precedence over writing statuses: the first
status of a job whose RayJob was just created is deferred by BACKLOG_SECONDS."""
BACKLOG_SECONDS = 10.0
logger = logging.getLogger("batchinference.operator")


def _now() -> datetime:
    return datetime.now(UTC)


Take = Callable[[Object], Key | None]
"""Puts an object into the cache or removes it; returns the key of its job if anything changed."""


def _begins(actions: Actions) -> bool:
    return any(body["kind"] == RAY_JOB for body in actions.create)


def _namespace(key: Key) -> str:
    return key[0]


@dataclass
class Controller:
    """Reconciles the jobs whose keys are in the work queue."""

    gateway: Gateway
    drivers: Drivers
    settings: Settings
    cache: Cache = field(default_factory=Cache)
    queue: KeyedQueue[Key] = field(default_factory=lambda: KeyedQueue(lane=_namespace))
    now: Callable[[], datetime] = _now
    signals: Signals = field(default_factory=Signals)
    written: dict[Key, datetime] = field(default_factory=dict)
    """When the status of each job was last written."""
    away: dict[Key, datetime] = field(default_factory=dict)
    """Since when the API server has been unreachable for creating the objects of a job."""
    limited: dict[Key, tuple[str, Backstop]] = field(default_factory=dict)
    """The requested change of backstop deadlines that a job's RayJob does not show yet, with the
    RayJob's uid. It is requested only once, because an admission policy may reject or alter it."""
    unwritten: set[Key] = field(default_factory=set)
    """Jobs whose objects were created before their first status was written. If the objects must be
    created again before that, the job may be gone. The status write detects this, so it is not
    deferred a second time."""

    def __post_init__(self) -> None:
        self.words = Words(self.gateway, now=self.now)
        self.doubts = Doubts(self.gateway, self.cache)
        self.cache.turns.wake = self.queue.add
        self.cache.changed = self.signals.changed
        self.drivers.answered = self.queue.add

    async def learn(self, namespaces: Sequence[str]) -> None:
        """List all jobs and RayJobs before any job starts, if there is a concurrency limit.

        Watches report objects one after the other. A job must not start only because it was
        reported first. No namespaces means all namespaces. Raises Refused.
        """
        if not self.settings.concurrency.limited:
            return
        for namespace in namespaces or [""]:
            async for body in self.gateway.all(RAY_JOB, namespace):
                self._learn_of(self.cache.set_ray_job, body)
            async for body in self.gateway.all(KIND, namespace):
                self._learn_of(self.cache.set_job, body)

    def _learn_of(self, take: Take, body: Object) -> None:
        """Like `hear`, but a tenant's object that cannot be parsed does not stop the operator."""
        try:
            self.hear(take, body)
        except Exception:
            logger.exception("an object cannot be read and is left out")

    def hear(self, take: Take, body: Object) -> None:
        """Update the cache with an object, and queue its job if anything changed."""
        if (key := take(body)) is not None:
            self.queue.add(key)

    async def work(self) -> None:
        """Run one worker until it is cancelled."""
        while True:
            key = await self.queue.get()
            with about(*key, self.cache.attempt(key)):
                await self._try(key)

    async def _try(self, key: Key) -> None:
        try:
            with self.signals.look():
                await self._look(key)
        except Conflict:
            self.queue.retry(key)
        except Unreachable as words:
            delay = self.queue.retry(key)
            logger.warning("the API server is away: %s; trying again in %.1f s", words, delay)
        except Refused as words:
            delay = self.queue.retry(key)
            logger.warning("refused: %s; trying again in %.1f s", words, delay)
        except Exception:
            delay = self.queue.retry(key)
            logger.exception("trying again in %.1f s", delay)
        finally:
            if not self.queue.is_due(key):  # it may have been admitted during the reconcile
                self.cache.turns.pass_over(key)
            self.queue.done(key)

    async def _look(self, key: Key) -> None:
        observed = self.cache.observe(key)
        if observed is None:
            self.queue.forget(key)
            self.written.pop(key, None)
            self.away.pop(key, None)
            self.limited.pop(key, None)
            self.unwritten.discard(key)
            await self._look_at_orphans(key)
            return
        observed = await self._observe_more(observed)
        if self.settings.concurrency.limited and not self.cache.is_current(observed.job):
            self.queue.add(key)
            return
        observed = replace(observed, turn=self.cache.turns.turn_of(key))
        actions = self._decide(observed)
        if actions.takes_turn:
            self.cache.turns.take(key)
        again_after = await self._act(observed.job, actions)
        self.queue.forgive(key)
        self.away.pop(key, None)
        if again_after is not None:
            self.queue.add_after(key, again_after)

    def _decide(self, observed: Observed) -> Actions:
        """Return the actions for a job.

        If reconcile fails because of the driver's report, the report is ignored: a driver must not
        be able to keep its job from its deadlines.
        """
        try:
            return reconcile(observed, self.settings, self.now())
        except Exception:
            if observed.report is None:
                raise
            logger.exception("the driver's report is ignored")
        without = replace(observed, report=None, driver_reached=False)
        return reconcile(without, self.settings, self.now())

    async def _look_at_orphans(self, key: Key) -> None:
        """Read the stale RayJobs of a deleted job live, and requeue the job while any are left.

        They count towards the concurrency limit until they are gone, and the watch may miss that.
        """
        if await self.doubts.settle_orphans(key):
            self.queue.add_after(key, DOUBT_SECONDS + 1)

    async def _observe_more(self, observed: Observed) -> Observed:
        """Return the observation with what the watches do not report.

        This adds live reads of stale objects, the driver's last answer, and messages of Events and
        of Kueue.
        """
        job = observed.job
        if settled(job):
            return await self.doubts.about_live(observed)
        observed = await self.doubts.settled(observed)
        seen = ray_job_of(observed)
        if wants_report(observed) and seen is not None:
            observed = self._with_answer(observed, seen)
            observed = await self._unless_taken_back(observed, seen)
        return replace(observed, words=await self.words.about(observed))

    def _with_answer(self, observed: Observed, seen: RayJobView) -> Observed:
        """Return the observation with the last answer of the driver."""
        tokens = self.settings.tokens(observed.job, seen.name)
        pace = poll_pace(observed.drivers - self.drivers.slow)
        answer = self.drivers.latest(observed.job.key, seen, tokens, pace)
        if answer is None:
            return replace(observed, driver_polled=False)
        return replace(
            observed,
            report=answer.report,
            driver_reached=answer.reached,
            report_age=answer.age,
            driver_problem=answer.problem,
            driver_unauthorized=answer.unauthorized,
        )

    async def _unless_taken_back(self, observed: Observed, seen: RayJobView) -> Observed:
        """Return the observation with a live read of the RayJob if Kueue may have evicted it.

        A driver fails when Kueue removes its pods. Its report may arrive before the watch reports
        that Kueue suspended the RayJob.
        """
        report = observed.report
        if not seen.queue or report is None or report.state != JobState.FAILED:
            return observed
        return await self.doubts.afresh(observed, seen)

    async def _act(self, job: JobView, actions: Actions) -> float | None:
        """Carry out the actions. Return the seconds until the job is requeued, or None."""
        for seen in actions.stop:
            self.drivers.stop(job.key, seen, self.settings.tokens(job, seen.name))
        for seen in actions.remove:
            await self.gateway.remove(job.namespace, seen)
            self.cache.removed(job.key, seen)
            logger.info("removed RayJob %s", seen.name)
        try:
            status = await self._create(job, actions)
        except Refused as words:
            await self._tell(job, words)
            raise
        for seen in actions.release:
            await self.gateway.release(job.namespace, seen)
            logger.info("released the cluster of %s", seen.name)
        await self._limit(job, actions)
        if status is None:
            return actions.again_after
        if (held := self._held(job, actions, status)) > 0:
            self.signals.wrote("deferred")
            return held
        await self._write(job, status)
        return actions.again_after

    async def _limit(self, job: JobView, actions: Actions) -> None:
        """Change the backstop deadlines of a RayJob. If that fails, the job continues."""
        if actions.backstop is None:
            self.limited.pop(job.key, None)
            return
        seen, backstop = actions.backstop
        change = (seen.uid, backstop)
        if self.limited.get(job.key) == change:
            return
        try:
            await self.gateway.limit(job.namespace, seen, backstop)
        except (Unreachable, Conflict) as words:
            logger.warning("the deadlines of RayJob %s are not changed yet: %s", seen.name, words)
            return
        except Refused as words:
            logger.warning("the deadlines of RayJob %s are not changed: %s", seen.name, words)
        self.limited[job.key] = change

    async def _tell(self, job: JobView, words: Refused) -> None:
        """Write to the status why the objects of a job cannot be created.

        If the API server is unreachable, this waits until that has lasted AWAY_SECONDS.
        """
        if not isinstance(words, Unreachable):
            await self._write(job, refused(job, str(words), self.now()))
            return
        since = self.away.setdefault(job.key, self.now())
        if (self.now() - since).total_seconds() >= AWAY_SECONDS:
            await self._write(job, away(job, str(words), self.now()))

    def _held(self, job: JobView, actions: Actions, status: Status) -> float:
        """Return for how many seconds to defer the status write.

        The reconcile after that computes the status again.
        """
        # only if there is no status yet: an existing one would be wrong in the meantime
        silent = "phase" not in job.status and job.key not in self.unwritten
        if silent and _begins(actions) and len(self.queue) >= BACKLOG:
            self.unwritten.add(job.key)
            return BACKLOG_SECONDS
        held = hold(job.status, status, self._since_written(job))
        if held <= 0 or not merge_patch(job.status, status):
            return 0.0
        return held if actions.again_after is None else min(held, actions.again_after)

    def _since_written(self, job: JobView) -> float:
        written = self.written.get(job.key)
        return inf if written is None else (self.now() - written).total_seconds()

    async def _create(self, job: JobView, actions: Actions) -> Status | None:
        """Create the objects, and return the status to write afterwards; None to leave it alone."""
        status = actions.status
        for body in actions.create:
            made = await self.gateway.create(body)
            if made is None:
                continue  # an earlier operator process created it, and did not record that
            if body["kind"] == RAY_JOB:
                logger.info("created RayJob %s", body["metadata"]["name"])
                self.cache.made(made)
                further = created(job, status or job.status, made, self.settings, self.now())
                status = await self._create(job, further)
        return status

    async def _patch(self, job: JobView, version: str, patch: Status) -> Object | None:
        """Write a status patch and return the job as stored; None if the job is gone.

        If the CustomResourceDefinition is older than the operator and rejects the patch, only the
        fields that it knows are written: a status that is never written would block the job.
        """
        try:
            return await self.gateway.patch_status(*job.key, version, patch)
        except Invalid as words:
            reduced = understood(patch)
            if reduced == patch:
                raise
            logger.warning("%s; the status is written without what is unknown", words)
            self.signals.rejected(job, str(words))
            return await self.gateway.patch_status(*job.key, version, reduced)

    async def _write(self, job: JobView, status: Status) -> None:
        patch, key = merge_patch(job.status, status), job.key
        if not patch:
            self.signals.wrote("unchanged")
            return
        version = job.resource_version
        try:
            written = await self._patch(job, version, patch)
        except Conflict:
            self.signals.wrote("conflict")
            raise
        self.unwritten.discard(key)
        if written is None:
            self.signals.wrote("gone")
            self.written.pop(key, None)
            self.cache.forget(key, job.uid)
            return
        self.cache.wrote(written)
        self.written[key] = self.now()
        self.signals.wrote("written")
        if "phase" in patch:
            logger.info("phase %s", patch["phase"])
