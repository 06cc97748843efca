"""The fields of a RayJob that the operator reads and caches, for thousands of RayJobs."""

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeGuard

from pydantic import ValidationError

from batchinference.plan.groups import HEAD_GROUP
from batchinference.rendering import (
    CHOICE,
    DEVICES_LABEL,
    EVICTABLE,
    GENERATION,
    QUEUE_LABEL,
    RAY_CONTAINER,
    RELEASED,
    KubeRayDeadlines,
)
from batchinference.spec.base import MEMORY
from batchinference.spec.durations import time_of
from batchinference.spec.report import parse_failure_line
from batchinference.spec.status import Choice
from batchinference.text import in_one_line
from batchinference_operator.status.conditions import MAX_MESSAGE, find_condition, truncate_message

Object = dict[str, Any]
"""A Kubernetes object in the JSON form of the API server."""

DASHBOARD_PORT = 8265
RAY_CONTAINERS = (RAY_CONTAINER, "ray-head", "ray-worker")
"""Names of the Ray container, including names from earlier versions. Other containers are
sidecars."""
_FAILED_DELETE = "FailedDelete"
"""Prefix of KubeRay's reasons if KubeRay cannot delete a pod, usually as the pod is gone."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
MAX_DIGITS = 6
MAX_CHOICE = 4096
MAX_GROUPS = 64
MAX_GROUP_NAME = 63
MAX_MEMORY = 16
MAX_LOG = MAX_MESSAGE + 1024
"""Maximum sizes of the fields of RayJobs, which are untrusted. A job has at most 33 groups. The end
of a log is cut to MAX_MESSAGE only after its credentials are masked, so that no part remains."""


def owner_uid(body: Object, kind: str) -> str | None:
    """Return the uid of the controlling owner reference of this kind; None if there is none."""
    for reference in body["metadata"].get("ownerReferences", []):
        if reference.get("controller") and reference["kind"] == kind:
            return cut_text(reference["uid"])
    return None


def _pod_creation_error(cluster: Object) -> str:
    failure = find_condition(cluster, "ReplicaFailure")
    message = str(failure.get("message", ""))
    fails = failure.get("status") == "True"
    return message if fails and _FAILED_DELETE not in f"{failure.get('reason')} {message}" else ""


def section(body: Object, *path: str) -> Object:
    """Return the section of an object at a path of fields; empty if it is missing or null."""
    for name in path:
        body = body.get(name) or {}
    return body


def _groups(spec: Object) -> list[Object]:
    """Return the groups of pods of a RayJob. The first is the head, which has a name, too."""
    cluster = section(spec, "rayClusterSpec")
    head = {"groupName": HEAD_GROUP, **section(cluster, "headGroupSpec"), "maxReplicas": 1}
    return [head, *(cluster.get("workerGroupSpecs") or [])]


def _planned_devices(spec: Object) -> tuple[int, int | None]:
    """Return the devices of the largest pod, and the maximum devices of all pods. The maximum is
    None if the spec has no worker groups."""
    if section(spec, "rayClusterSpec").get("workerGroupSpecs") is None:
        return 0, None
    groups = _groups(spec)
    devices = [devices_of(section(group, "template", "metadata", "labels")) for group in groups]
    counts = [int(group.get("maxReplicas", 0)) for group in groups]
    return max(devices), sum(map(operator.mul, devices, counts))


def _group_memory(spec: Object) -> Iterator[tuple[str, str]]:
    """Yield the names of groups of pods and the memory limits of their Ray containers, if valid.
    The spec is untrusted: users may create RayJobs with any number of groups and any values."""
    for group in _groups(spec)[: MAX_GROUPS + 1]:
        ray = (section(group, "template", "spec").get("containers") or [{}])[0]
        memory = str(section(ray, "resources", "limits").get("memory", ""))
        if len(memory) <= MAX_MEMORY and re.fullmatch(MEMORY, memory):
            yield cut_text(group.get("groupName"), MAX_GROUP_NAME), memory


def _name_or_empty(value: object) -> str:
    """Return a name from an untrusted field, to use it in API paths; empty if it is invalid."""
    return value if is_name(value) else ""


def is_name(value: object) -> TypeGuard[str]:
    """Return whether an object or a namespace can have this name."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def cut_text(value: object, limit: int = 253) -> str:
    """Return the first `limit` characters of a text; empty for another type. Users may write 1 MiB
    into a field of a RayJob, and the operator keeps RayJobs in memory."""
    return value[:limit] if isinstance(value, str) else ""


def devices_of(labels: dict[str, str]) -> int:
    """Return the number of devices in the labels of a pod; 0 if the untrusted value is invalid."""
    return _parse_number(labels.get(DEVICES_LABEL)) or 0


def _choice(annotations: dict[str, str]) -> Choice | None:
    """Return the choice in the annotations of a RayJob; None if the untrusted value is invalid."""
    try:
        return Choice.model_validate_json(annotations.get(CHOICE, "")[:MAX_CHOICE], extra="ignore")
    except ValidationError:
        return None


def _parse_number(text: str | None) -> int | None:
    """Return the number in a label or an annotation; None if it is invalid."""
    return int(text) if text and text.isdecimal() and len(text) < MAX_DIGITS else None


def _valid_time(status: Object, field: str) -> str:
    """Return a time from an untrusted status; empty if it is not a valid time."""
    text = str(status.get(field) or "")
    return text if time_of(text) else ""


@dataclass(frozen=True, slots=True)
class RayJobView:
    """A RayJob. An empty string means that KubeRay has not set the field yet."""

    name: str
    uid: str
    owner_uid: str | None
    created_at: str
    deleted_at: str
    """When its deletion started; empty if it is not being deleted."""
    cluster_retained: bool
    """Whether the cluster is kept after the end, so that users can inspect it."""
    job_id: str
    """Ray's submission ID of the driver's run."""
    job_status: str
    deployment_status: str
    reason: str
    message: str
    """The driver's message if its log ends with one; otherwise KubeRay's message."""
    cause: str
    """The failure cause at the end of the driver's log."""
    cluster: str
    head_ip: str
    head_service: str
    driver_started_at: str
    """When the driver started; if unknown, when KubeRay accepted the RayJob."""
    ended_at: str
    suspend: bool
    """Whether `suspend` is set, for instance by Kueue, or KubeRay has yet to resume the RayJob."""
    queue: str
    """Its LocalQueue; empty if Kueue does not manage it."""
    multikueue: bool
    """Whether Kueue runs it on another Kubernetes cluster, so that KubeRay here ignores it."""
    released_at: str
    """When the operator last asked Kueue to look at its gated pods; empty if never."""
    deadlines: KubeRayDeadlines
    """The deadlines after which KubeRay ends it."""
    generation: int | None
    """The generation of the BatchInference from which it was created; None if unknown."""
    memory: tuple[tuple[str, str], ...]
    """Pairs of a group's name and the memory of its pods, including the head."""
    max_devices: int | None
    """Maximum devices of all its pods; None if its spec has no worker groups."""
    max_devices_per_pod: int
    """Devices of the largest pod."""
    choice: Choice | None
    """The choice with which it was created; None if no type of device or capacity is asked for."""
    head_protected: bool
    """Whether its head must not be evicted."""
    pod_creation_error: str
    """Why KubeRay cannot create pods, for instance because of a quota or a policy."""

    @classmethod
    def of(cls, body: Object) -> Self:
        """Return the view of a RayJob. Invalid values of untrusted fields are left out."""
        status, spec = section(body, "status"), section(body, "spec")
        cluster, ray = section(status, "rayClusterStatus"), section(status, "rayJobInfo")
        reported = parse_failure_line(status.get("message", "")) or ("", status.get("message", ""))
        deployment = cut_text(status.get("jobDeploymentStatus"))
        annotations = section(body, "metadata", "annotations")
        per_pod, max_devices = _planned_devices(spec)
        head = section(spec, "rayClusterSpec", "headGroupSpec", "template", "metadata")
        return cls(
            name=body["metadata"]["name"],
            uid=body["metadata"].get("uid", ""),
            owner_uid=owner_uid(body, "BatchInference"),
            created_at=body["metadata"].get("creationTimestamp", ""),
            deleted_at=body["metadata"].get("deletionTimestamp", ""),
            cluster_retained=bool(spec.get("ttlSecondsAfterFinished")),
            job_id=_name_or_empty(status.get("jobId")),
            job_status=cut_text(status.get("jobStatus")),
            deployment_status=deployment,
            reason=cut_text(status.get("reason")),
            message=in_one_line(reported[1])[:MAX_LOG],
            cause=cut_text(reported[0]),
            cluster=_name_or_empty(status.get("rayClusterName")),
            head_ip=cut_text(section(cluster, "head").get("podIP")),
            head_service=cut_text(section(cluster, "head").get("serviceName")),
            driver_started_at=_valid_time(ray, "startTime") or _valid_time(status, "startTime"),
            ended_at=_valid_time(status, "endTime"),
            queue=body["metadata"].get("labels", {}).get(QUEUE_LABEL, ""),
            multikueue=spec.get("managedBy") == "kueue.x-k8s.io/multikueue",
            released_at=_valid_time(annotations, RELEASED),
            deadlines=KubeRayDeadlines.in_spec(spec),
            suspend=bool(spec.get("suspend")) or deployment in ("Suspending", "Suspended"),
            generation=_parse_number(annotations.get(GENERATION)),
            memory=tuple(_group_memory(spec)) if owner_uid(body, "BatchInference") else (),
            max_devices=max_devices,
            max_devices_per_pod=per_pod,
            choice=_choice(annotations),
            head_protected=section(head, "annotations").get(EVICTABLE) == "false",
            pod_creation_error=truncate_message(_pod_creation_error(cluster)),
        )

    @property
    def deleting(self) -> bool:
        """Whether it is being deleted."""
        return bool(self.deleted_at)

    @property
    def suspended(self) -> bool:
        """Whether it is suspended and has not ended."""
        return self.suspend and not self.ended

    @property
    def awaiting_pods(self) -> bool:
        """Whether KubeRay must still create the pods of its cluster."""
        return bool(self.cluster) and not (self.driver_started or self.suspended or self.ended)

    @property
    def ended(self) -> bool:
        """Whether it is in a final state. A RayJob that KubeRay rejects as invalid never starts."""
        return self.deployment_status in ("Complete", "Failed", "ValidationFailed")

    @property
    def succeeded(self) -> bool:
        """Whether its driver succeeded. KubeRay's "Complete" means only that the driver ended."""
        return self.deployment_status == "Complete" and self.job_status == "SUCCEEDED"

    @property
    def outcome(self) -> str:
        """How it ended: Ray's status if KubeRay's is "Complete", otherwise KubeRay's status."""
        ray = self.job_status.capitalize() if self.deployment_status == "Complete" else ""
        return ray or self.deployment_status

    @property
    def driver_running(self) -> bool:
        """Whether its driver is running according to KubeRay."""
        return self.job_status == "RUNNING" and not self.ended

    @property
    def driver_started(self) -> bool:
        """Whether its driver has started; the driver may have ended since."""
        return self.job_status in ("RUNNING", "STOPPED", "SUCCEEDED", "FAILED")
