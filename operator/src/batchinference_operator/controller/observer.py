"""Collects the observed state of a job for one reconcile, from the cache and other sources."""

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from batchinference.rendering import RAY_CLUSTER, RAY_JOB
from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState
from batchinference_operator.controller.cache import Cache
from batchinference_operator.controller.driver_poller import DriverPoller
from batchinference_operator.kube.client import KubeClient
from batchinference_operator.kube.errors import Conflict, Refused
from batchinference_operator.kube.object_client import POD
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.driver_report import must_poll_driver
from batchinference_operator.reconcile.job_view import JobKey
from batchinference_operator.reconcile.kueue import is_gated
from batchinference_operator.reconcile.requeue import POLLS_PER_SECOND, poll_interval
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.attempts import is_running
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import Clock, utc_now

MAX_PODS = 2
"""Maximum number of pods of a job whose Events are read. Events of other pods are similar."""
POD_START_SECONDS = 60.0
"""Seconds that a pod may take to start before its Events are read. Pulling an image takes time."""
FIRST_BACKOFF = 10.0
MAX_BACKOFF = 160.0
"""First and maximum seconds before Events about the same object are read again."""
Read = Callable[[], Coroutine[Any, Any, str]]
logger = logging.getLogger("batchinference.operator")


@dataclass(frozen=True)
class _LastRead:
    message: str
    backoff: float
    until: float


@dataclass
class EventReader:
    """Reads Events about pods and RayClusters, and Kueue's messages about RayJobs. The messages
    only inform users, so no reconcile fails if they cannot be read."""

    api: KubeClient
    failed: set[str] = field(default_factory=set)
    """Kinds that could not be read last time, so that a failure is logged only once."""
    now: Clock = utc_now
    last_reads: dict[tuple[str, str], _LastRead] = field(default_factory=dict)
    """The last read of each object, by its namespace and name. The oldest read comes first."""

    async def messages(self, observed: Observed) -> dict[str, str]:
        """Return messages by object name: for at most MAX_PODS pods whose containers do not start,
        for a RayCluster without pods, and for a RayJob that Kueue queues."""
        namespace, ray_job = observed.job.namespace, observed.ray_job
        since = self.now().timestamp() - POD_START_SECONDS
        pods = [pod for pod in observed.pods if pod.waiting and (pod.scheduled_at or inf) <= since]
        waiting = [(POD, pod.name) for pod in pods][:MAX_PODS]
        if ray_job is not None and ray_job.awaiting_pods and not observed.pods_of_attempt:
            waiting.append((RAY_CLUSTER, ray_job.cluster))
        events = {name: partial(self._warning, namespace, kind, name) for kind, name in waiting}
        queues: dict[str, Read] = {}
        if ray_job is not None and (ray_job.suspended or is_gated(observed)):
            queues[ray_job.name] = partial(self.api.queued_reason, namespace, ray_job)
        return await self._read("Events", events) | await self._read("Workloads", queues)

    async def _warning(self, namespace: str, kind: str, name: str) -> str:
        """Return the last warning about an object. The result of a recent read is used again. Reads
        have a backoff, because each read searches all Events of the namespace."""
        key, now = (namespace, name), self.now().timestamp()
        last = self.last_reads.get(key)
        if last is not None and now < last.until:
            return last.message
        message = await self.api.last_warning(namespace, kind, name)
        backoff = FIRST_BACKOFF if last is None else min(2 * last.backoff, MAX_BACKOFF)
        self.last_reads.pop(key, None)
        self.last_reads[key] = _LastRead(message, backoff, now + backoff)
        self._forget(now - 2 * MAX_BACKOFF)
        return message

    def _forget(self, limit: float) -> None:
        """Forget the reads whose backoff ended before `limit`."""
        for key, last_read in list(self.last_reads.items()):
            if last_read.until >= limit:
                return
            del self.last_reads[key]

    async def _read(self, kind: str, reads: Mapping[str, Read]) -> dict[str, str]:
        """Return the messages that are not empty. Stop at the first read that fails."""
        messages: dict[str, str] = {}
        try:
            for name, read in reads.items():
                messages[name] = await read()
                self.failed.discard(kind)
        except (Refused, Conflict) as problem:
            if kind not in self.failed:
                logger.warning("%s cannot be read: %s", kind, problem)
            self.failed.add(kind)
        return {name: message for name, message in messages.items() if message}


class Observer:
    """Combines the cache with live reads, answers of drivers, and messages about the objects."""

    def __init__(
        self, api: KubeClient, cache: Cache, drivers: DriverPoller, config: Config, now: Clock
    ) -> None:
        self._api, self._cache, self._drivers, self._config = api, cache, drivers, config
        self._event_reader = EventReader(api, now=now)
        self.polls_per_second = POLLS_PER_SECOND

    async def observe(self, key: JobKey) -> Observed | None:
        """Return the observed state of a job; None if the job is gone. The admission is decided
        last, because it may change while requests are awaited."""
        observed = self._cache.observe(key)
        if observed is None:
            return None
        if not observed.job.terminal:
            observed = await self._observe_attempt(await self._read_missing(observed))
        return replace(observed, admission=self._cache.admission_queue.decide(key))

    async def _read_missing(self, observed: Observed) -> Observed:
        """Return the observation. If it lacks the RayJob of the running attempt, read this RayJob.

        The cache may miss a RayJob whose label was changed, or that the watch has not reported yet.
        The attempt fails only if the API server does not have the RayJob either.
        """
        job = observed.job
        name = job.last_attempt_names.ray_job
        if not is_running(job.status) or name in observed.ray_jobs:
            return observed
        return await self._read_live(observed, name)

    async def _read_live(self, observed: Observed, name: str) -> Observed:
        """Return the observation with the current state of a RayJob. The cache is not changed."""
        body = await self._api.get_object(RAY_JOB, observed.job.namespace, name)
        others = {other: view for other, view in observed.ray_jobs.items() if other != name}
        read = {name: RayJobView.of(body)} if body else {}
        return replace(observed, ray_jobs={**others, **read})

    async def _observe_attempt(self, observed: Observed) -> Observed:
        ray_job = observed.ray_job
        if must_poll_driver(observed) and ray_job is not None:
            observed = self._with_answer(observed, ray_job)
            observed = await self._recheck_stop(observed, ray_job)
        return replace(observed, messages=await self._event_reader.messages(observed))

    def _with_answer(self, observed: Observed, ray_job: RayJobView) -> Observed:
        """Return the observation with the last answer of the driver."""
        tokens = self._config.tokens(observed.job, ray_job)
        drivers = observed.driver_count - self._drivers.slow
        interval = poll_interval(drivers, self.polls_per_second)
        answer = self._drivers.latest(observed.job.key, ray_job, tokens, interval)
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

    async def _recheck_stop(self, observed: Observed, ray_job: RayJobView) -> Observed:
        """Return the observation. If Kueue may have evicted the RayJob, or somebody may have
        deleted it, read it again: the last report may arrive before the watch says so."""
        report = observed.report
        if report is None or report.state != JobState.FAILED:
            return observed
        may_be_stopped = ray_job.queue or report.reason == Cause.INTERRUPTED
        return await self._read_live(observed, ray_job.name) if may_be_stopped else observed
