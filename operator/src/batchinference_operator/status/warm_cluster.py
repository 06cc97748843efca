"""The observed state of warm clusters, which start before a job needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from batchinference.rendering import CLAIM, CLAIM_TIME, FINGERPRINT, POOL_LABEL
from batchinference.spec.job import KIND
from batchinference_operator.status.ray_job import Object, RayJobView, owner_uid

HEAD_POD_READY = "HeadPodReady"
"""Condition of KubeRay on whether the head pod is ready."""


class Claim(NamedTuple):
    """The only RayJob that may run in a warm cluster, and the uid of its BatchInference."""

    job_uid: str
    ray_job: str


@dataclass(frozen=True)
class WarmCluster:
    """A RayCluster of a pool, or one that was taken from a pool by a claim."""

    name: str
    uid: str
    resource_version: str
    pool: str
    fingerprint: str
    created_at: str
    ready: bool
    deleting: bool
    claim: Claim | None
    claimed_at: str

    @classmethod
    def of(cls, body: Object) -> Self:
        metadata = body["metadata"]
        annotations = metadata.get("annotations") or {}
        claimed = CLAIM in annotations
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            pool=(metadata.get("labels") or {}).get(POOL_LABEL, ""),
            fingerprint=annotations.get(FINGERPRINT, ""),
            created_at=metadata.get("creationTimestamp", ""),
            ready=_is_ready(body.get("status") or {}),
            deleting="deletionTimestamp" in metadata,
            claim=Claim(owner_uid(body, KIND) or "", annotations[CLAIM]) if claimed else None,
            claimed_at=annotations.get(CLAIM_TIME, ""),
        )


def _is_ready(status: Object) -> bool:
    """Return whether all pods have been ready and the head is ready now.

    KubeRay never clears the state of a cluster that has lost its head.
    """
    conditions = status.get("conditions") or []
    heads = [one.get("status") for one in conditions if one.get("type") == HEAD_POD_READY]
    return status.get("state") == "ready" and "False" not in heads


def is_claimed_by(cluster: Object, ray_job: RayJobView) -> bool:
    """Return whether a RayCluster was claimed for a RayJob."""
    claim = (cluster["metadata"].get("annotations") or {}).get(CLAIM)
    uid = owner_uid(cluster, KIND)
    return claim == ray_job.name and uid is not None and uid == ray_job.owner_uid
