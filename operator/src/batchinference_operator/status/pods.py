"""The observed state of a job's pods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from batchinference.rendering import CLUSTER_LABEL, POD_GROUP_LABEL, running_containers
from batchinference.spec.quantities import cpus_of
from batchinference_operator.status.failure_cause import (
    Disruption,
    PodProblem,
    disruption_of,
    problem_of,
)
from batchinference_operator.status.pod_fields import containers_of, is_gate, is_head, pod_ended_at
from batchinference_operator.status.ray_job import Object, gpus_of
from batchinference_operator.status.timestamps import unix_seconds

_UNKNOWN = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a job. Times are in seconds since 1970."""

    name: str
    uid: str
    cluster: str
    """Its RayCluster, which tells apart pods of other attempts and of earlier jobs of this name."""
    is_head: bool
    group: str
    """The KubeRay worker group; empty for the head."""
    deleting: bool
    created_at: float
    gpus: int
    cpus: float
    scheduled_at: float | None
    """When it got a node; None before."""
    ended_at: float | None
    """When its last container ended; None while it may use resources of its node."""
    gated: bool
    """Whether it has a scheduling gate. Kueue removes the gate when there is quota."""
    waiting: bool
    """Whether it has a node, but a container is not started. Often only Events explain this."""
    problem: PodProblem | None
    disruption: Disruption | None

    @classmethod
    def of(cls, body: Object) -> Self:
        metadata, status = body["metadata"], body.get("status") or {}
        labels = metadata["labels"]
        return cls(
            name=metadata["name"],
            uid=metadata.get("uid") or metadata["name"],
            cluster=labels.get(CLUSTER_LABEL, ""),
            is_head=is_head(body),
            group=labels.get(POD_GROUP_LABEL, ""),
            deleting="deletionTimestamp" in metadata,
            created_at=unix_seconds(metadata.get("creationTimestamp") or _UNKNOWN),
            gpus=gpus_of(labels),
            cpus=requested_cpus(running_containers(body.get("spec") or {})),
            scheduled_at=_scheduled_at(status),
            ended_at=pod_ended_at(status),
            gated=any(map(is_gate, status.get("conditions", []))),
            waiting=_has_waiting_container(status) and "deletionTimestamp" not in metadata,
            problem=problem_of(body),
            disruption=disruption_of(body),
        )


def _has_waiting_container(status: Object) -> bool:
    quiet = ("ContainerCreating", "PodInitializing")
    waiting = [(one.get("state") or {}).get("waiting") or {} for one in containers_of(status)]
    return any(one.get("reason") in quiet for one in waiting)


def _scheduled_at(status: Object) -> float | None:
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "True":
            return unix_seconds(condition["lastTransitionTime"])
    return None


def requested_cpus(containers: Iterable[Object]) -> float:
    """Return the CPUs of containers: the request of each, or its limit if it has no request."""
    return sum(map(_cpus, containers))


def _cpus(container: Object) -> float:
    resources = container.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return cpus_of(amounts.get("cpu", "0"))
