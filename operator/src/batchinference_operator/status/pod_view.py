"""The fields of a pod that the operator reads and caches."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from batchinference.rendering import CLUSTER_LABEL, POD_GROUP_LABEL, running_containers
from batchinference.spec.quantities import cpus_of
from batchinference_operator.status.conditions import find_condition
from batchinference_operator.status.pod_problems import (
    Disruption,
    PodProblem,
    containers_of,
    creation_time,
    disruption_of,
    has_gate,
    is_head,
    pod_ended_at,
    problem_of,
)
from batchinference_operator.status.ray_job_view import Object, devices_of, section
from batchinference_operator.status.timestamps import unix_seconds

_STARTING = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that has not started."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a job. Times are in seconds since 1970."""

    name: str
    uid: str
    cluster: str
    """Its RayCluster. Other attempts, and earlier jobs of this name, have other clusters."""
    is_head: bool
    group: str
    """The KubeRay worker group; `headgroup` for the head."""
    deleting: bool
    created_at: float
    devices: int
    cpus: float
    scheduled_at: float | None
    """When it got a node; None before."""
    ended_at: float | None
    """When its last container ended; None while it may use resources of its node."""
    gated: bool
    """Whether it has a scheduling gate. Kueue removes the gate when there is quota."""
    waiting: bool
    """Whether it has a node, but a container has not started. Often only Events explain why."""
    problem: PodProblem | None
    disruption: Disruption | None

    @property
    def started(self) -> bool:
        """Whether it has a node, no container waits to start, and one of them has not ended."""
        return self.scheduled_at is not None and self.ended_at is None and not self.waiting

    @classmethod
    def of(cls, body: Object) -> Self:
        """Return the view of a pod of a job."""
        metadata, status = body["metadata"], section(body, "status")
        labels, deleting = metadata["labels"], "deletionTimestamp" in metadata
        scheduled = find_condition(status, "PodScheduled")
        has_node = scheduled.get("status") == "True"
        waits = {section(each, "state", "waiting").get("reason") for each in containers_of(status)}
        return cls(
            name=metadata["name"],
            uid=metadata.get("uid") or metadata["name"],
            cluster=labels.get(CLUSTER_LABEL, ""),
            is_head=is_head(body),
            group=labels.get(POD_GROUP_LABEL, ""),
            deleting=deleting,
            created_at=creation_time(metadata),
            devices=devices_of(labels),
            cpus=requested_cpus(running_containers(section(body, "spec"))),
            scheduled_at=unix_seconds(scheduled["lastTransitionTime"]) if has_node else None,
            ended_at=pod_ended_at(status),
            gated=has_gate(scheduled),
            waiting=not (deleting or waits.isdisjoint(_STARTING)),
            problem=problem_of(body),
            disruption=disruption_of(body),
        )


def requested_cpus(containers: Iterable[Object]) -> float:
    """Return the CPUs of containers: the request of each, or its limit if it has no request."""
    cpus = 0.0
    for container in containers:
        resources = section(container, "resources")
        amounts = {**section(resources, "limits"), **section(resources, "requests")}
        cpus += cpus_of(amounts.get("cpu", "0"))
    return cpus
