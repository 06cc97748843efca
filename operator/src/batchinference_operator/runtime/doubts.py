"""Live reads of objects that a decision depends on and whose cached state is stale."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.beginning import names_of
from batchinference_operator.reconcile.model import Observed
from batchinference_operator.runtime.cache import Cache
from batchinference_operator.runtime.gateway import Forbidden, Gateway
from batchinference_operator.runtime.keys import Key
from batchinference_operator.status.attempts import number_of
from batchinference_operator.status.observations import RayJobView

logger = logging.getLogger("batchinference.operator")


@dataclass
class Doubts:
    """Reads stale objects live and stores the result in the cache."""

    gateway: Gateway
    cache: Cache

    async def settled(self, observed: Observed) -> Observed:
        """Return the observation with live reads of the stale RayJobs and pods that matter."""
        return await self._sure_of_pods(await self._sure_of_ray_jobs(observed))

    async def about_live(self, observed: Observed) -> Observed:
        """Return the observation with live reads of stale RayJobs that have not ended.

        This is for a job that is finished or being deleted: such RayJobs still count towards the
        concurrency limit.
        """
        namespace = observed.job.namespace
        doubtful = {
            name
            for name, seen in observed.ray_jobs.items()
            if not seen.ended and self.cache.doubtful(namespace, name)
        }
        return await self._with_fresh(observed, doubtful)

    async def settle_orphans(self, key: Key) -> bool:
        """Read the stale RayJobs of a deleted job live, and return whether any RayJobs are left.

        A RayJob that is still being deleted waits for KubeRay, which is unavailable: its cluster is
        removed here. A RayJob that the operator may no longer read counts as gone: its namespace is
        gone, together with the operator's Role there.
        """
        for seen in self.cache.ray_jobs(key):
            if not self.cache.doubtful(key[0], seen.name):
                continue
            try:
                left = await self._looked_up(key, seen.name, seen)
            except Forbidden as words:
                logger.warning("RayJob %s does not count any more: %s", seen.name, words)
                left = self.cache.confirm(key, seen, None)
            if left is not None and left.deleting:
                await self.gateway.remove(key[0], left)
        return bool(self.cache.ray_jobs(key))

    async def afresh(self, observed: Observed, seen: RayJobView) -> Observed:
        """Return the observation with a live read of a RayJob, even if it is not stale."""
        return await self._with_fresh(observed, {seen.name})

    async def _sure_of_ray_jobs(self, observed: Observed) -> Observed:
        """Return the observation with live reads of stale RayJobs that matter.

        These are the RayJob of the last attempt, and those that block the next attempt.
        """
        job, number = observed.job, number_of(observed.job.status)
        in_the_way = {
            name
            for name, seen in observed.ray_jobs.items()
            if seen.deleting or not seen.ended or seen.owner_uid != job.uid
        }
        last = {names_of(job, number).ray_job} if number else set()
        unsure = {
            name
            for name in in_the_way | last
            if name not in observed.ray_jobs or self.cache.doubtful(job.namespace, name)
        }
        return await self._with_fresh(observed, unsure)

    async def _with_fresh(self, observed: Observed, names: set[str]) -> Observed:
        """Return the observation with live reads of the RayJobs with these names."""
        found = dict(observed.ray_jobs)
        for name in sorted(names):
            fresh = await self._looked_up(observed.job.key, name, found.pop(name, None))
            if fresh is not None:
                found[name] = fresh
        return replace(observed, ray_jobs=found)

    async def _sure_of_pods(self, observed: Observed) -> Observed:
        """Return the observation with a live read of the pods if they are stale.

        A pod whose deletion the watch missed would be charged as long as the RayJob runs.
        """
        doubtful = self.cache.pods.doubtful(observed.job.key)
        if not observed.pods and observed.job.status.get("phase") == Phase.SUSPENDING:
            # the next status says that no pods are left, and the watch may have only just started
            there = await self.gateway.pods(*observed.job.key)
            return replace(observed, unheard_pods=bool(there))
        if not doubtful:
            return observed
        there = await self.gateway.pods(*observed.job.key)
        return replace(observed, pods=self.cache.pods.confirm(observed.job.key, doubtful, there))

    async def _looked_up(self, key: Key, name: str, seen: RayJobView | None) -> RayJobView | None:
        body = await self.gateway.ray_job(key[0], name)
        if seen is not None:
            return self.cache.confirm(key, seen, body)
        return RayJobView.of(body) if body else None
