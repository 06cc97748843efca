"""Live reads of objects that a decision depends on and whose cached state is stale."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from batchinference.spec.phases import Phase
from batchinference_operator.controller.cache import Cache
from batchinference_operator.controller.keys import Key
from batchinference_operator.kube.api import Forbidden, KubeApi
from batchinference_operator.reconcile.owned import names_of
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.attempts import attempt_number
from batchinference_operator.status.ray_job import RayJobView

logger = logging.getLogger("batchinference.operator")


@dataclass
class LiveReads:
    """Reads stale objects live and stores the result in the cache."""

    api: KubeApi
    cache: Cache

    async def refresh_stale(self, observed: Observed) -> Observed:
        """Return the observation with live reads of the stale RayJobs and pods that matter."""
        return await self._refresh_pods(await self._refresh_ray_jobs(observed))

    async def refresh_active(self, observed: Observed) -> Observed:
        """Return the observation with live reads of stale RayJobs that have not ended.

        This is for a job that is finished or being deleted: such RayJobs still count towards the
        concurrency limit.
        """
        namespace = observed.job.namespace
        stale = {
            name
            for name, ray_job in observed.ray_jobs.items()
            if not ray_job.ended and self.cache.is_stale(namespace, name)
        }
        return await self._refresh(observed, stale)

    async def refresh_orphans(self, key: Key) -> bool:
        """Read the stale RayJobs of a deleted job live, and return whether any RayJobs are left.

        A RayJob that is still being deleted waits for KubeRay, which is unavailable: its cluster is
        removed here. A RayJob that the operator may no longer read counts as gone: its namespace is
        gone, together with the operator's Role there.
        """
        for ray_job in self.cache.ray_jobs(key):
            if not self.cache.is_stale(key[0], ray_job.name):
                continue
            try:
                ray_job_left = await self._read_ray_job(key, ray_job.name, ray_job)
            except Forbidden as error:
                logger.warning("RayJob %s does not count any more: %s", ray_job.name, error)
                ray_job_left = self.cache.refresh(key, ray_job, None)
            if ray_job_left is not None and ray_job_left.deleting:
                await self.api.delete_ray_job(key[0], ray_job_left)
        return bool(self.cache.ray_jobs(key))

    async def read_live(self, observed: Observed, ray_job: RayJobView) -> Observed:
        """Return the observation with a live read of a RayJob, even if it is not stale."""
        return await self._refresh(observed, {ray_job.name})

    async def _refresh_ray_jobs(self, observed: Observed) -> Observed:
        """Return the observation with live reads of stale RayJobs that matter.

        These are the RayJob of the last attempt, and those that block the next attempt.
        """
        job, number = observed.job, attempt_number(observed.job.status)
        in_the_way = {
            name
            for name, ray_job in observed.ray_jobs.items()
            if ray_job.deleting or not ray_job.ended or ray_job.owner_uid != job.uid
        }
        last = {names_of(job, number).ray_job} if number else set()
        names = {
            name
            for name in in_the_way | last
            if name not in observed.ray_jobs or self.cache.is_stale(job.namespace, name)
        }
        return await self._refresh(observed, names)

    async def _refresh(self, observed: Observed, names: set[str]) -> Observed:
        """Return the observation with live reads of the RayJobs with these names."""
        found = dict(observed.ray_jobs)
        for name in sorted(names):
            fresh = await self._read_ray_job(observed.job.key, name, found.pop(name, None))
            if fresh is not None:
                found[name] = fresh
        return replace(observed, ray_jobs=found)

    async def _refresh_pods(self, observed: Observed) -> Observed:
        """Return the observation with a live read of the pods if they are stale.

        A pod whose deletion the watch missed would be charged as long as the RayJob runs.
        """
        stale = self.cache.pods.stale_pods(observed.job.key)
        if not observed.pods and observed.job.status.get("phase") == Phase.SUSPENDING:
            # the next status says that no pods are left, and the watch may have only just started
            names = await self.api.list_pod_names(*observed.job.key)
            return replace(observed, unsynced_pods=bool(names))
        if not stale:
            return observed
        names = await self.api.list_pod_names(*observed.job.key)
        return replace(observed, pods=self.cache.pods.refresh(observed.job.key, stale, names))

    async def _read_ray_job(
        self, key: Key, name: str, ray_job: RayJobView | None
    ) -> RayJobView | None:
        body = await self.api.get_ray_job(key[0], name)
        if ray_job is not None:
            return self.cache.refresh(key, ray_job, body)
        return RayJobView.of(body) if body else None
