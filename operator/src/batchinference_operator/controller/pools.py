"""The control loop of pools: keeps the configured number of warm clusters."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from batchinference.rendering import POOL_LABEL, RAY_CLUSTER, RAY_JOB, warm_cluster
from batchinference_operator.controller.controller import Controller
from batchinference_operator.controller.diagnostics import Diagnostics
from batchinference_operator.kube.api import MAX_WARM_CLUSTERS, Conflict, Refused
from batchinference_operator.reconcile.pool import START_SECONDS, Pool, reconcile_pool
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.warm_cluster import Claim, WarmCluster

POOL_SECONDS = 5.0
"""Interval in seconds at which each pool is reconciled."""
logger = logging.getLogger("batchinference.operator")


@dataclass
class PoolController:
    """Reconciles the pools of a controller's config. All state is in the API server."""

    controller: Controller
    diagnostics: Diagnostics = field(init=False)

    def __post_init__(self) -> None:
        self.diagnostics = Diagnostics(self.controller.api, now=self.controller.now)

    async def work(self) -> None:
        """Reconcile all pools every POOL_SECONDS until cancelled."""
        failures: dict[tuple[str, str], str] = {}
        while True:
            for pool in self.controller.config.pools:
                failure = await self._process(pool)
                if failure and failure != failures.get(pool.key):
                    logger.warning("pool %s: %s", "/".join(pool.key), failure)
                failures[pool.key] = failure
            await asyncio.sleep(POOL_SECONDS)

    async def _process(self, pool: Pool) -> str:
        """Reconcile a pool and return why it failed or cannot start; empty if neither is true."""
        try:
            return await self.reconcile(pool)
        except (Conflict, Refused) as error:
            return str(error)
        except Exception:
            logger.exception("reconcile of pool %s failed", "/".join(pool.key))
        return ""

    async def reconcile(self, pool: Pool) -> str:
        """Observe the clusters of a pool, decide, and apply the actions.

        Returns why a cluster of the pool does not start; empty if none is late.
        """
        api, now = self.controller.api, self.controller.now()
        clusters = await self._clusters(pool)
        actions = reconcile_pool(pool, clusters, await self._used(pool, clusters), now)
        for cluster in actions.delete:
            logger.info("deleting warm cluster %s of pool %s", cluster.name, pool.name)
            await api.delete_warm_cluster(pool.namespace, cluster)
        for cluster in actions.create_secrets:
            await api.create(self.controller.warm_secret(pool.namespace, cluster.name, cluster.uid))
        if actions.create > 0:
            await self._create(pool, actions.create)
        return await self._why_late(pool, actions.late[0]) if actions.late else ""

    async def _why_late(self, pool: Pool, cluster: WarmCluster) -> str:
        warning = await self.diagnostics.warning(pool.namespace, RAY_CLUSTER, cluster.name)
        why = warning or "see the Events of its pods"
        return f"RayCluster {cluster.name} is not ready after {START_SECONDS:.0f} s: {why}"

    async def _clusters(self, pool: Pool) -> list[WarmCluster]:
        """Return the clusters of a pool. Raises Refused if there are too many to list all."""
        listed = self.controller.api.list_warm_clusters(pool.namespace, pool.name)
        clusters = [WarmCluster.of(body) async for body in listed]
        if len(clusters) >= MAX_WARM_CLUSTERS:
            raise Refused(
                f"{MAX_WARM_CLUSTERS} or more RayClusters have the label {POOL_LABEL}={pool.name}: "
                "delete those that no job needs, or reduce ttl.cluster of the jobs"
            )
        return clusters

    async def _used(self, pool: Pool, clusters: Sequence[WarmCluster]) -> set[str]:
        """Return the names of claimed clusters whose RayJob exists.

        A RayJob that is not in the cache is read from the API server.
        """
        used = set()
        for cluster in clusters:
            if cluster.pool != pool.name or cluster.claim is None:
                continue
            known = self.controller.cache.has_ray_job(pool.namespace, cluster.name)
            if known or await self._is_used(pool.namespace, cluster.name, cluster.claim):
                used.add(cluster.name)
        return used

    async def _is_used(self, namespace: str, cluster: str, claim: Claim) -> bool:
        body = await self.controller.api.get_object(RAY_JOB, namespace, claim.ray_job)
        view = RayJobView.of(body) if body else None
        return view is not None and (view.owner_uid, view.cluster) == (claim.job_uid, cluster)

    async def _create(self, pool: Pool, count: int) -> None:
        """Create clusters, each with its token. Raises Refused if the owner does not exist."""
        api = self.controller.api
        name = pool.owner("").name
        owner = await api.get_object("ConfigMap", pool.namespace, name)
        if owner is None:
            raise Refused(
                f"ConfigMap {name} does not exist: upgrade the release to create it again"
            )
        reference = pool.owner(owner["metadata"]["uid"])
        for _ in range(count):
            name = f"{pool.name}-warm-{secrets.token_hex(4)}"
            body = warm_cluster(pool.job, pool.name, name, pool.fingerprint, reference)
            if (created := await api.create(body)) is not None:
                uid = created["metadata"]["uid"]
                await api.create(self.controller.warm_secret(pool.namespace, name, uid))
                logger.info("created warm cluster %s of pool %s", name, pool.name)
