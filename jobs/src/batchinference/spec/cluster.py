"""What only a cluster needs: image, service account, environment, volumes, worker groups."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from batchinference.spec.base import (
    DIRECTORY,
    DNS_LABEL,
    DNS_SUBDOMAIN,
    START_VALUE,
    Cpus,
    SpecModel,
    rules,
)
from batchinference.spec.durations import Duration, seconds_of
from batchinference.spec.limits import Limits
from batchinference.spec.patches import GroupName, Patch
from batchinference.spec.pods import Environment, NodeSelector, ObjectName, Toleration
from batchinference.spec.profiles import Profiles
from batchinference.spec.quantities import HeadMemory, Memory, MemoryRequest

Directory = Annotated[str, Field(pattern=DIRECTORY, max_length=1024)]
QueueName = Annotated[str, Field(pattern=DNS_SUBDOMAIN, max_length=63)]
"""Kueue takes it from a label, hence the length."""
RESERVED_VOLUMES = "^(ray-logs|shared-mem|ray-token|batchinference-job|batchinference-kube-api)$"
RESERVED_PATHS = (
    "^/+((tmp/+ray|dev/+shm|etc/+batchinference|(var/+)?run/+secrets/+(kubernetes|ray)[.]io)"
    "(/.*)?)?$"
)
"""What KubeRay and the operator mount in the pods, and the root directory."""
_RESERVED = "is reserved for Ray, KubeRay and the operator"
_ONE_SOURCE = "give exactly one of persistentVolumeClaim, hostPath, configMap and secret"

MAX_GRACE_SECONDS = 60
"""The next attempt waits this long for the pods of the previous one."""


def _check_grace(duration: str) -> str:
    if seconds_of(duration) > MAX_GRACE_SECONDS:
        raise PydanticCustomError("grace", "expected at most {most}s", {"most": MAX_GRACE_SECONDS})
    return duration


GracePeriod = Annotated[Duration, AfterValidator(_check_grace)]


RAY_START_OPTIONS = (
    *("object-store-memory", "object-spilling-directory", "plasma-directory", "memory"),
    *("min-worker-port", "max-worker-port", "worker-port-list"),
    *("object-manager-port", "node-manager-port", "runtime-env-agent-port"),
    *("dashboard-agent-grpc-port", "include-log-monitor", "log-style", "log-color"),
)
"""The others are set by BatchInference or KubeRay, or open the node to other clients."""


def _start_option(name: str) -> str:
    if name not in RAY_START_OPTIONS:
        message = "not an option of `ray start` that a job may set. Use one of {known}"
        raise PydanticCustomError("start_option", message, {"known": ", ".join(RAY_START_OPTIONS)})
    return name


RayStartParams = Annotated[
    dict[
        Annotated[str, Field(max_length=64), AfterValidator(_start_option)],
        Annotated[str, Field(pattern=START_VALUE, max_length=256)],
    ],
    Field(max_length=32),
]
"""Options by name. KubeRay puts the values into a shell command, hence their pattern."""


class NamedRef(SpecModel):
    name: ObjectName
    """The object's name."""


class ClaimVolume(SpecModel):
    claim_name: ObjectName
    """The PersistentVolumeClaim's name."""


class HostPathVolume(SpecModel):
    path: Directory
    """The directory on the node."""


class SecretVolume(SpecModel):
    secret_name: ObjectName
    """The Secret's name."""


class Volume(SpecModel):
    """A volume, mounted in every pod of the job. It holds exactly one source."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "[has(self.persistentVolumeClaim), has(self.hostPath), has(self.configMap), "
                "has(self.secret)].exists_one(given, given)",
                _ONE_SOURCE,
            ),
            (f"!self.name.matches('{RESERVED_VOLUMES}')", f"this volume name {_RESERVED}"),
            (f"!self.mountPath.matches('{RESERVED_PATHS}')", f"this mountPath {_RESERVED}"),
        )
    )

    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=40)]
    """The volume's name in the pods."""
    mount_path: Directory
    """Where it appears."""
    read_only: bool = False
    """Mount it without the right to write."""
    persistent_volume_claim: ClaimVolume | None = None
    """A claim that all pods can mount (ReadWriteMany or ReadOnlyMany)."""
    host_path: HostPathVolume | None = None
    """A directory of the node: shared only where every pod runs on one node."""
    config_map: NamedRef | None = None
    """A ConfigMap, one file a key."""
    secret: SecretVolume | None = None
    """A Secret, one file a key."""

    @model_validator(mode="after")
    def _check(self) -> Volume:
        sources = (self.persistent_volume_claim, self.host_path, self.config_map, self.secret)
        if sum(source is not None for source in sources) != 1:
            raise PydanticCustomError("volume_source", _ONE_SOURCE, {})
        if re.match(RESERVED_VOLUMES, self.name):
            message = f"the name '{{name}}' {_RESERVED}: choose another"
            raise PydanticCustomError("volume_name", message, {"name": self.name})
        if re.match(RESERVED_PATHS, self.mount_path):
            message = f"the mountPath '{{path}}' {_RESERVED}: mount the volume elsewhere"
            raise PydanticCustomError("volume_path", message, {"path": self.mount_path})
        return self


class Requests(SpecModel):
    """What a pod asks of the scheduler, where that is less than it may use."""

    cpu: Cpus | None = None
    """CPUs."""
    memory: MemoryRequest | None = None
    """Memory."""


class Head(SpecModel):
    """The head pod: Ray's own services and the driver. No step runs on it."""

    cpu: Cpus | None = None
    """CPUs. One by default."""
    memory: HeadMemory | None = None
    """Memory, 1Gi at least. 4Gi by default."""
    node_selector: NodeSelector | None = None
    """Labels that the node of the head must have, instead of those in cluster.nodeSelector."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] | None = None
    """Taints that the head pod tolerates, instead of those in cluster.tolerations."""


class Workers(SpecModel):
    """The worker group `cpu`: it reads, writes and runs every step that asks for CPUs alone."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("!has(self.min) || !has(self.max) || self.min <= self.max", "min is above max")
        )
    )

    cpu: Cpus | None = None
    """CPUs of one worker. By default, as many as hold a replica of each CPU step, a
    reading and a writing task, but at most 8 where no single replica needs more."""
    memory: Memory | None = None
    """Memory of one worker. 4Gi by default."""
    min: Annotated[int, Field(ge=0, le=10000)] | None = None
    """Workers that start with the cluster. One by default; with 0 the first task brings
    the first."""
    max: Annotated[int, Field(ge=1, le=10000)] | None = None
    """Workers that the group may grow to. Enough for every replica, and one more, by
    default."""

    @model_validator(mode="after")
    def _check(self) -> Workers:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise PydanticCustomError(
                "workers", "min ({min}) is above max ({max})", {"min": self.min, "max": self.max}
            )
        return self


class Cluster(SpecModel):
    """Settings of the job's pods. A laptop ignores them."""

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """The image of every pod: the product's pipeline image, or yours built from it."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled, as Kubernetes has it."""
    image_pull_secrets: Annotated[list[NamedRef], Field(max_length=8)] = []
    """Secrets with which the image is pulled."""
    service_account_name: ObjectName | None = None
    """The ServiceAccount of the pods, for instance one bound to a cloud role."""
    env: Environment = []
    """Environment variables of every pod."""
    volumes: Annotated[
        list[Volume],
        Field(
            max_length=16,
            json_schema_extra=rules(
                ("self.all(a, self.exists_one(b, b.name == a.name))", "two volumes have one name"),
                (
                    "self.all(a, self.exists_one(b, b.mountPath == a.mountPath))",
                    "two volumes have one mountPath",
                ),
            ),
        ),
    ] = []
    """Volumes of every pod."""
    node_selector: NodeSelector = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    """Taints that the pods tolerate."""
    priority_class_name: ObjectName | None = None
    """The PriorityClass of every pod."""
    requests: Requests | None = None
    """What every pod asks of the scheduler, where it is less than its limits: for small and for
    shared nodes. By default a pod asks for all it may use."""
    head: Head = Head()
    """The head pod."""
    workers: Workers = Workers()
    """The worker group for everything that needs no device."""
    queue: QueueName | None = None
    """The LocalQueue of Kueue by which the job waits for its quota. Each attempt is created
    suspended and begins when Kueue admits it."""
    queue_priority_class: QueueName | None = None
    """The WorkloadPriorityClass that the job has there."""
    limits: Limits = Limits()
    """How much the job may take of the cluster."""
    ray_start_params: Annotated[dict[GroupName, RayStartParams], Field(max_length=32)] = {}
    """Options of `ray start` by group: `head`, `cpu`, the name of another worker group, or `*` for
    all. The options of a single group override those of `*`."""
    idle_timeout: Duration | None = None
    """How long a worker is idle before the autoscaler removes it. 60s by default."""
    termination_grace_period: GracePeriod | None = None
    """How long a pod has to end before it is killed, at most 60s. 5s by default. Ray does not use
    the time, but sidecars may."""
    patches: Annotated[list[Patch], Field(max_length=16)] = []
    """Changes to the pods that no other field can express. They are applied last. The platform may
    forbid or limit them. Patches of the platform's defaults are applied after those of the job."""
    profiles: Profiles = {}
    """What the steps' `acceleratorType` and `custom` resources are on this cluster, by their names,
    and `GPU` for GPUs of any type. GPU (nvidia.com/gpu) and NPU (huawei.com/Ascend910) are known
    already; a profile of that name changes them."""

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        for field in ("name", "mount_path"):
            values = [getattr(volume, field) for volume in self.volumes]
            if twice := [value for value in values if values.count(value) > 1]:
                message = "two volumes have the {field} '{value}'"
                shown = {"field": to_camel(field), "value": twice[0]}
                raise PydanticCustomError("volumes", message, shown)
        return self
