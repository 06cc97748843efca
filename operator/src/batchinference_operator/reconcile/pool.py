"""Decides which warm clusters a pool starts and deletes, and which one an attempt claims.

A claim makes the BatchInference the owner of the cluster and names the RayJob. The operator deletes
the cluster with the RayJob, as it deletes the own cluster of an attempt. `reconcile_pool` deletes
only clusters whose RayJob was never created or was deleted by somebody else.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from batchinference.rendering import (
    CLAIM,
    CLAIM_TIME,
    Owner,
    WarmStart,
    effective,
    fingerprint_of,
)
from batchinference.spec import API_VERSION, KIND, BatchInference, Problem, SpecError, parse
from batchinference.spec.base import DNS_LABEL
from batchinference.spec.cluster import Cluster
from batchinference.spec.documents import parse_settings
from batchinference.spec.durations import Duration, seconds_of
from batchinference.spec.problems import raise_for_problems
from batchinference_operator.status.ray_job import Object
from batchinference_operator.status.timestamps import seconds_since, to_rfc3339
from batchinference_operator.status.warm_cluster import Claim, WarmCluster

CLAIM_SECONDS = 120.0
"""Seconds after which a claimed cluster is deleted if its RayJob does not exist."""
REFILL_SECONDS = 15.0
"""Seconds after a claim in which the claimed cluster is not replaced, so that the start of another
cluster does not slow down the start of the job."""
OWNER_PREFIX = "batch-inference-pool-"
"""Prefix of the ConfigMap of a pool, which owns the clusters that no attempt has claimed."""
MIN_AGE_SECONDS = 600
"""Minimum of `maxAge`. A cluster must have started before it is replaced."""
START_SECONDS = 300.0
"""Seconds after which the start of a cluster is reported as late."""
_SPEC = {
    "read": {"format": "text", "paths": ["s3://any/"]},
    "write": {"format": "parquet", "path": "s3://any-output/"},
}
"""The input and the output of a pool whose spec has none. The cluster does not depend on them."""


def _check_age(duration: str) -> str:
    if seconds_of(duration) < MIN_AGE_SECONDS:
        raise PydanticCustomError("duration", "expected at least 10m, such as 24h", {})
    return duration


class PoolSettings(BaseModel):
    """An item of the chart value `pools`."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, populate_by_name=True
    )

    namespace: str
    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=20)]
    size: Annotated[int, Field(ge=1, le=50)] = 1
    max_age: Annotated[Duration, AfterValidator(_check_age)] = "24h"
    spec: dict[str, Any] = {}
    """Fields of the spec of a job, such as `cluster`. Jobs that start the same cluster fit."""


class PoolList(BaseModel):
    """The file with the chart value `pools`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: list[PoolSettings] = []


@dataclass(frozen=True)
class Pool:
    """A number of warm clusters in a namespace, each for one job like `job`."""

    settings: PoolSettings
    job: BatchInference
    """A job with complete cluster settings."""
    fingerprint: str

    @classmethod
    def of(cls, settings: PoolSettings, defaults: Cluster) -> Pool:
        """Return the pool with these settings. Raises SpecError if no job can have its spec."""
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": settings.name, "namespace": settings.namespace},
            "spec": {**_SPEC, **settings.spec},
        }
        try:
            job = effective(parse(document), defaults)
            raise_for_problems(_check_queue(job))
            return cls(settings, job, fingerprint_of(job))
        except SpecError as error:
            where = f"pool {settings.namespace}/{settings.name}, "
            problems = [Problem(where + one.path, one.message) for one in error.problems]
            raise SpecError(problems) from None

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.settings.namespace, self.settings.name

    @property
    def namespace(self) -> str:
        return self.settings.namespace

    @property
    def name(self) -> str:
        return self.settings.name

    def owner(self, uid: str) -> Owner:
        """Return the owner of clusters that no attempt has claimed."""
        return Owner(f"{OWNER_PREFIX}{self.name}", uid, "ConfigMap", "v1")

    def keeps(self, cluster: WarmCluster, now: datetime) -> bool:
        """Return whether a cluster is not claimed, has the pool's spec and is not too old."""
        if cluster.claim is not None or cluster.fingerprint != self.fingerprint:
            return False
        return seconds_since(cluster.created_at, now) < seconds_of(self.settings.max_age)


def _check_queue(job: BatchInference) -> list[Problem]:
    """Return a problem if the jobs of a pool are in a queue of Kueue."""
    if (queue := job.spec.cluster.queue) is None:
        return []
    message = f"no job in a queue can take a warm cluster ({queue}). Remove the pool or the queue."
    return [Problem("spec.cluster.queue", message)]


def parse_pools(text: str, defaults: Cluster) -> tuple[Pool, ...]:
    """Return the pools in a YAML text. Raises SpecError if a pool is invalid."""
    return tuple(Pool.of(one, defaults) for one in parse_settings(text, PoolList).pools)


@dataclass(frozen=True)
class PoolActions:
    """Their order is: delete, create Secrets, create clusters."""

    delete: tuple[WarmCluster, ...] = ()
    create_secrets: tuple[WarmCluster, ...] = ()
    """Clusters that are starting. Their Secrets are created again in case they are missing."""
    create: int = 0
    late: tuple[WarmCluster, ...] = ()
    """Clusters that are not ready within START_SECONDS."""


def reconcile_pool(
    pool: Pool, clusters: Iterable[WarmCluster], used: Container[str], now: datetime
) -> PoolActions:
    """Return the actions for a pool. `used` are the names of clusters with an existing RayJob."""
    live = [one for one in clusters if one.pool == pool.name and not one.deleting]
    idle = [one for one in live if pool.keeps(one, now)]
    idle.sort(key=lambda one: (not one.ready, one.created_at))
    kept = idle[: pool.settings.size]
    starting = [one for one in kept if not one.ready]
    return PoolActions(
        delete=tuple(one for one in live if one not in kept and not _is_used(one, used, now)),
        create_secrets=tuple(starting),
        create=max(0, pool.settings.size - len(kept) - _recent_claims(live, now)),
        late=tuple(one for one in starting if _is_late(one, now)),
    )


def _is_late(cluster: WarmCluster, now: datetime) -> bool:
    return seconds_since(cluster.created_at, now) >= START_SECONDS


def _recent_claims(clusters: Iterable[WarmCluster], now: datetime) -> int:
    """Return how many clusters were claimed within REFILL_SECONDS."""
    return sum(
        one.claim is not None and abs(seconds_since(one.claimed_at, now)) < REFILL_SECONDS
        for one in clusters
    )


def _is_used(cluster: WarmCluster, used: Container[str], now: datetime) -> bool:
    """Return whether the RayJob of a claimed cluster exists or may still be created.

    A time in the future, which a user may set, does not keep the cluster.
    """
    if cluster.claim is None:
        return False
    return cluster.name in used or abs(seconds_since(cluster.claimed_at, now)) < CLAIM_SECONDS


def candidates(clusters: Iterable[WarmCluster], start: WarmStart) -> Sequence[WarmCluster]:
    """Return the clusters that an attempt may claim, the oldest first.

    A cluster with a claim of the same attempt is not among them: its RayJob may have run in it and
    then been deleted. After an interrupted claim, `reconcile_pool` deletes the cluster.
    """
    free = [
        one
        for one in clusters
        if one.ready
        and not one.deleting
        and one.fingerprint == start.fingerprint
        and one.claim is None
    ]
    return sorted(free, key=lambda one: one.created_at)


def claim_metadata(claim: Claim, job: str, now: datetime) -> Object:
    """Return the metadata that a claim sets: a new owner, the RayJob and the time."""
    annotations = {CLAIM: claim.ray_job, CLAIM_TIME: to_rfc3339(now)}
    return {"annotations": annotations, "ownerReferences": [Owner(job, claim.job_uid).reference()]}
