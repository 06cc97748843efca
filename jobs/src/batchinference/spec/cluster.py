"""Settings for clusters only: image, ServiceAccount, environment, volumes and worker groups."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.base import (
    DIRECTORY,
    DNS_LABEL,
    DNS_SUBDOMAIN,
    START_VALUE,
    SpecModel,
    keyed,
)
from batchinference.spec.durations import Duration, seconds_of
from batchinference.spec.fixes import above_max
from batchinference.spec.limits import Limits
from batchinference.spec.patches import GroupName, Patch
from batchinference.spec.pods import Environment, NodeSelector, ObjectName, Toleration
from batchinference.spec.profiles import Profiles
from batchinference.spec.quantities import Cpus, HeadMemory, Memory, MemoryRequest

Directory = Annotated[str, Field(pattern=DIRECTORY, max_length=1024)]
QueueName = Annotated[str, Field(pattern=DNS_SUBDOMAIN, max_length=63)]
"""The length is the maximum of a label value, because Kueue reads the name from a label."""
RESERVED_VOLUMES = "^(ray-logs|shared-mem|ray-token|batchinference-job|batchinference-kube-api)$"
RESERVED_PATHS = (
    "^/+((tmp/+ray|dev/+shm|etc/+batchinference|(var/+)?run/+secrets/+(kubernetes|ray)[.]io)"
    "(/.*)?)?$"
)
"""Mount paths of KubeRay and the operator, and the root directory."""
_RESERVED = "is reserved for Ray, KubeRay and the operator"
_ONE_SOURCE = "give exactly one of persistentVolumeClaim, hostPath, configMap and secret"

MAX_GRACE_SECONDS = 60
"""The next attempt waits at most this long for the pods of the previous one."""


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
"""Options that a job may set. BatchInference or KubeRay sets the others, or they would allow other
clients to connect to the node."""


def _check_start_option(name: str) -> str:
    if name not in RAY_START_OPTIONS:
        message = "not an option of `ray start` that a job may set. Use one of {known}"
        raise PydanticCustomError("start_option", message, {"known": ", ".join(RAY_START_OPTIONS)})
    return name


RayStartParams = Annotated[
    dict[
        Annotated[str, Field(max_length=64), AfterValidator(_check_start_option)],
        Annotated[str, Field(pattern=START_VALUE, max_length=256)],
    ],
    Field(max_length=32),
]
"""Options by name. Values have a pattern because KubeRay inserts them into a shell command."""


class NamedRef(SpecModel):
    name: ObjectName
    """The name of the object."""


class ClaimVolume(SpecModel):
    claim_name: ObjectName
    """The name of the PersistentVolumeClaim."""


class HostPathVolume(SpecModel):
    path: Directory
    """The directory on the node."""


class SecretVolume(SpecModel):
    secret_name: ObjectName
    """The name of the Secret."""


class Volume(SpecModel):
    """A volume that is mounted in every pod of the job. It has exactly one source."""

    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=40)]
    """The name of the volume in the pods."""
    mount_path: Directory
    """The directory at which the volume is mounted."""
    read_only: bool = False
    """Whether the volume is mounted read-only."""
    persistent_volume_claim: ClaimVolume | None = None
    """A PersistentVolumeClaim that all pods can mount (ReadWriteMany or ReadOnlyMany)."""
    host_path: HostPathVolume | None = None
    """A directory of the node. Pods share it only if all of them run on the same node."""
    config_map: NamedRef | None = None
    """A ConfigMap, with one file per key."""
    secret: SecretVolume | None = None
    """A Secret, with one file per key."""

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
    """The resource requests of a pod, if they are lower than its limits."""

    cpu: Cpus | None = None
    """Number of CPUs."""
    memory: MemoryRequest | None = None
    """Memory, such as 2Gi."""


class Head(SpecModel):
    """The head pod, which runs the Ray services and the driver. No step runs on it."""

    cpu: Cpus | None = None
    """Number of CPUs. 1 by default."""
    memory: HeadMemory | None = None
    """Memory, at least 1Gi. 4Gi by default."""
    node_selector: NodeSelector | None = None
    """Labels that the node of the head must have, instead of `cluster.nodeSelector`."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] | None = None
    """Taints that the head pod tolerates, instead of `cluster.tolerations`."""


class Workers(SpecModel):
    """The worker group `cpu`, which reads, writes and runs all steps that need only CPUs."""

    cpu: Cpus | None = None
    """CPUs of a worker. By default, enough for one replica of each CPU step, a read task and a
    write task, but at most 8 unless a single replica needs more."""
    memory: Memory | None = None
    """Memory of a worker. 4Gi by default."""
    min: Annotated[int, Field(ge=0, le=10000)] | None = None
    """Minimum number of workers, which start with the cluster. 1 by default. With 0, the first task
    starts the first worker."""
    max: Annotated[int, Field(ge=1, le=10000)] | None = None
    """Maximum number of workers. By default, one more than all replicas need."""

    @model_validator(mode="after")
    def _check(self) -> Workers:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise PydanticCustomError(
                "workers", "{message}", {"message": above_max(self.min, self.max)}
            )
        return self


class Cluster(SpecModel):
    """Settings for the pods of the job. Local runs ignore them."""

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """The image of all pods: the BatchInference pipeline image, or your own image built from it."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled. By default, Kubernetes decides by the tag of the image."""
    image_pull_secrets: Annotated[list[NamedRef], *keyed("name", 8)] = []
    """Secrets for pulling the image."""
    service_account_name: ObjectName | None = None
    """The ServiceAccount of the pods, for example one that is bound to a cloud role."""
    env: Environment = []
    """Environment variables of all pods."""
    volumes: Annotated[list[Volume], *keyed("name", 16)] = []
    """Volumes of all pods."""
    node_selector: NodeSelector = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    """Taints that the pods tolerate."""
    priority_class_name: ObjectName | None = None
    """The PriorityClass of all pods."""
    requests: Requests | None = None
    """The resource requests of all pods, if they are lower than the limits: for small or shared
    nodes. By default, requests are equal to limits."""
    head: Head = Head()
    """The head pod."""
    workers: Workers = Workers()
    """The worker group for all work that does not need a device."""
    queue_name: QueueName | None = None
    """The Kueue LocalQueue in which the job waits for quota. Each attempt is created suspended, and
    starts when Kueue admits it."""
    queue_priority_class_name: QueueName | None = None
    """The WorkloadPriorityClass of the job in this queue."""
    limits: Limits = Limits()
    """Limits on the resources of the job."""
    ray_start_params: Annotated[dict[GroupName, RayStartParams], Field(max_length=32)] = {}
    """Options of `ray start` by group: `head`, `cpu`, the name of another worker group, or `*` for
    all groups. The options of a group override the options of `*`."""
    idle_timeout: Duration | None = None
    """How long a worker must be idle before the autoscaler removes it. 60s by default."""
    termination_grace_period: GracePeriod | None = None
    """The grace period of the pods before they are killed, at most 60s. 5s by default. Ray does not
    need it, but sidecars may."""
    patches: Annotated[list[Patch], Field(max_length=16)] = []
    """Patches of the pods, for changes that no other field can express. They are applied last. The
    platform can forbid or limit them. Patches in the platform's defaults are applied after the
    patches of the job."""
    profiles: Profiles = {}
    """How pods request each `acceleratorType` and `custom` resource of the steps on this cluster,
    by name. `GPU` is for GPUs of any type. `GPU` (nvidia.com/gpu) and `NPU` (huawei.com/Ascend910)
    are built in. A profile with one of these names overrides the fields that it sets."""

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        paths = [volume.mount_path for volume in self.volumes]
        if repeated := [path for path in paths if paths.count(path) > 1]:
            message = "two volumes have the mountPath '{path}'"
            raise PydanticCustomError("volumes", message, {"path": repeated[0]})
        return self
