"""Collects the observed state of a job for one reconcile, from the cache and other sources."""

from dataclasses import dataclass, replace

from batchinference.rendering import RAY_JOB
from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState
from batchinference_operator.controller.cache import Cache
from batchinference_operator.controller.driver_poller import DriverPoller
from batchinference_operator.controller.event_reader import EventReader
from batchinference_operator.kube.kube_client import KubeClient
from batchinference_operator.reconcile.cluster_tokens import cluster_tokens
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.driver_silence import must_poll_driver
from batchinference_operator.reconcile.job_view import JobKey
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.reconcile.requeue import POLL_SECONDS, POLLS_PER_SECOND
from batchinference_operator.status.attempts import is_running
from batchinference_operator.status.ray_job_view import RayJobView


@dataclass(eq=False)
class Observer:
    """Combines the cache with live reads, answers of drivers, and messages about the objects."""

    api: KubeClient
    cache: Cache
    drivers: DriverPoller
    config: Config
    event_reader: EventReader
    polls_per_second: float = POLLS_PER_SECOND

    async def observe(self, key: JobKey) -> Observed | None:
        """Return the observed state of a job; None if the job is gone. The admission is decided
        last, because it may change while requests are awaited."""
        observed = self.cache.observe(key)
        if observed is None:
            return None
        if not observed.job.terminal:
            observed = await self._read_missing(observed)
            ray_job = observed.ray_job
            if must_poll_driver(observed) and ray_job is not None:
                observed = await self._recheck_stop(self._with_answer(observed, ray_job), ray_job)
            observed = replace(observed, messages=await self.event_reader.messages(observed))
        return replace(observed, admission=self.cache.admission_queue.decide(key))

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
        body = await self.api.get_object(RAY_JOB, observed.job.namespace, name)
        others = {other: view for other, view in observed.ray_jobs.items() if other != name}
        read = {name: RayJobView.of(body)} if body else {}
        return replace(observed, ray_jobs={**others, **read})

    def _with_answer(self, observed: Observed, ray_job: RayJobView) -> Observed:
        """Return the observation with the last answer of the driver."""
        tokens = cluster_tokens(self.config, observed.job, ray_job.name)
        drivers = len(self.cache.active_drivers) - self.drivers.slow
        interval = max(POLL_SECONDS, drivers / self.polls_per_second)
        answer = self.drivers.latest(observed.job.key, ray_job, tokens, interval)
        return replace(observed, answer=answer)

    async def _recheck_stop(self, observed: Observed, ray_job: RayJobView) -> Observed:
        """Return the observation. If the driver reports a failure that an eviction by Kueue or a
        deletion of the RayJob may have caused, read the RayJob again. This report may arrive before
        the watch delivers the eviction or the deletion."""
        report = observed.report
        if report is None or report.state != JobState.FAILED:
            return observed
        may_be_stopped = ray_job.queue or report.reason == Cause.INTERRUPTED
        return await self._read_live(observed, ray_job.name) if may_be_stopped else observed
