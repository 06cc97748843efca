"""The section `cluster` of a job: the settings of its pods, such as the image, and its limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from batchinference.spec.base import (
    DNS_SUBDOMAIN,
    START_VALUE,
    SpecModel,
    Unique,
    invalid,
    keyed,
    required,
)
from batchinference.spec.durations import Duration, seconds_of
from batchinference.spec.pod_placement import Affinity, Topology, TopologySpreads
from batchinference.spec.pod_settings import (
    Annotations,
    EnvFrom,
    Environment,
    Image,
    Labels,
    NamedRef,
    NodeSelector,
    ObjectName,
    Toleration,
)
from batchinference.spec.profiles import Profiles
from batchinference.spec.quantities import Cpus, HeadMemory, Memory, MemoryRequest, Quantity
from batchinference.spec.resources import ResourceName
from batchinference.spec.value_fixes import above_max
from batchinference.spec.volumes import VolumeMounts, Volumes, check_mounts


class Limits(SpecModel):
    """Limits on the resources of a job. A job that could exceed `devices` or `cpu` is rejected
    before it starts. A job that has used its device hours or tokens is stopped. Absent limits do
    not apply. If the platform's defaults also set a limit, the lower value applies."""

    devices: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Maximum number of devices, such as GPUs, of all worker groups at their maximum size. Every
    resource whose profile has a `resource` or a `device` is a device."""
    cpu: Annotated[float, Field(gt=0, le=10_000_000), *Quantity] | None = None
    """Maximum number of CPUs of the head and of all worker groups at their maximum size."""
    device_hours: Annotated[float, Field(gt=0, le=100_000_000), *Quantity] | None = None
    """Maximum device hours of all attempts together. A job that has used them fails with the cause
    `LimitExceeded`. Its output is kept."""
    tokens: Annotated[int, Field(ge=1, le=10**15, json_schema_extra={"format": "int64"})] | None = (
        None
    )
    """Maximum input and output tokens of models for the committed rows, also on your machine. A job
    with more tokens commits the rows that are already computed, and fails with the cause
    `LimitExceeded`. Endpoints that do not report their `usage` are not limited."""


def lower_limits(job: Limits, platform: Limits) -> Limits:
    """Return `job` with the lower of both values of each limit. None stands for no limit."""
    pairs = {name: (getattr(job, name), getattr(platform, name)) for name in Limits.model_fields}
    lower = {name: min((limit for limit in pair if limit is not None), default=None)
             for name, pair in pairs.items()}  # fmt: skip
    return job.model_copy(update=lower)


QueueName = Annotated[str, Field(pattern=DNS_SUBDOMAIN, max_length=63)]
"""The name of a queue of Kueue. It is the value of a label, which limits its length."""
MAX_GRACE_SECONDS = 60
"""Maximum grace period of pods. It is short, because the next attempt waits until it has passed."""


GracePeriod = Annotated[
    Duration,
    required(
        lambda duration: seconds_of(duration) <= MAX_GRACE_SECONDS,
        f"expected at most {MAX_GRACE_SECONDS}s",
    ),
]
ALL_GROUPS = "*"
GroupName = Annotated[str, Field(min_length=1, max_length=20)]
"""`head`, `cpu`, the name of another worker group, or `*` for all groups."""
RAY_START_OPTIONS = (
    *("object-store-memory", "object-spilling-directory", "plasma-directory", "memory"),
    *("min-worker-port", "max-worker-port", "worker-port-list"),
    *("object-manager-port", "node-manager-port", "runtime-env-agent-port"),
    *("dashboard-agent-grpc-port", "include-log-monitor", "log-style", "log-color"),
)
"""Options of `ray start` that a job may set. All other options are refused. Some of them would let
other clients connect to the node."""


def _check_start_option(name: str) -> str:
    if name not in RAY_START_OPTIONS:
        known = ", ".join(RAY_START_OPTIONS)
        raise invalid(f"not an option of `ray start` that a job may set. Use one of {known}")
    return name


RayStartParams = Annotated[
    dict[
        Annotated[str, Field(max_length=64), AfterValidator(_check_start_option)],
        Annotated[str, Field(pattern=START_VALUE, max_length=256)],
    ],
    Field(max_length=32),
]
"""Values of options by name. The pattern is strict: KubeRay puts them into a shell command."""


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
    ephemeral_storage: MemoryRequest | None = None
    """Disk space of the head pod, instead of `cluster.ephemeralStorage`."""


class Workers(SpecModel):
    """The worker group `cpu`, which reads, writes and runs all steps that need only CPUs."""

    cpu: Cpus | None = None
    """CPUs of a worker. By default, enough for `replicas.min` of each CPU step, a read task and a
    write task, but at most 8. The default is higher if a single replica or task needs more."""
    memory: Memory | None = None
    """Memory of a worker. 4Gi by default."""
    min: Annotated[int, Field(ge=0, le=10000)] | None = None
    """Minimum number of workers, which start with the cluster. 1 by default; with gang scheduling
    or a queue, enough for `replicas.min`. With 0, the first task starts the first worker."""
    max: Annotated[int, Field(ge=1, le=10000)] | None = None
    """Maximum number of workers. By default, one more than all replicas and tasks need."""

    def _check(self) -> None:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise invalid(above_max(self.min, self.max))


class Fallback(SpecModel):
    """What happens if the cluster has no capacity for the devices of an attempt. The choices are
    all types in `acceleratorType` with the first capacity type, then all with the next."""

    after: Duration = "10m"
    """How long pods of a worker group may wait for a node, or the attempt in the queue of Kueue.
    Then the next attempt tries the next choice. The last choice waits until `deadlines.pending`."""
    capacity_types: Annotated[list[ResourceName], Field(max_length=4), Unique] = []
    """Names of profiles with the nodes to try, such as `[spot, on-demand]`. They apply to the pods
    with devices, or to all workers if the job has no devices."""


class Cluster(SpecModel):
    """Settings for the pods of the job. Local runs ignore most of them."""

    image: Image | None = None
    """The image of all pods: the BatchInference pipeline image, or your own image built from it. A
    profile may set another image for the pods with its device."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled. By default, Kubernetes decides by the tag of the image."""
    image_pull_secrets: Annotated[list[NamedRef], *keyed("name", 8)] = []
    """Secrets for pulling the image."""
    service_account_name: ObjectName | None = None
    """The ServiceAccount of the pods, for example one that is bound to a cloud role."""
    env: Environment = []
    """Environment variables of all pods."""
    env_from: Annotated[list[EnvFrom], Field(max_length=16)] = []
    """ConfigMaps and Secrets whose keys become environment variables of all pods. Variables in
    `env`, and those that Ray, KubeRay or the operator set, have precedence."""
    volumes: Volumes = []
    """Volumes of all pods."""
    volume_mounts: VolumeMounts = []
    """Where the volumes are mounted in all pods. A job can mount only its own volumes: volumes of
    the platform are mounted where the platform mounts them."""
    fs_group: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """The group that owns the files of mounted volumes, so that the pods can write to them. The
    files of a volume are changed only if the group of its root directory differs."""
    ephemeral_storage: MemoryRequest | None = None
    """Disk space of each pod for logs, spilled objects, downloaded models and `emptyDir`, such as
    100Gi. Pods request it, and a pod that uses more is evicted."""
    labels: Labels = {}
    """Labels of the RayJob and of all pods."""
    annotations: Annotations = {}
    """Annotations of the RayJob and of all pods. The platform limits them."""
    node_selector: NodeSelector = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    """Taints that the pods tolerate."""
    affinity: Affinity | None = None
    """Nodes and pods that attract or repel all pods."""
    topology_spread_constraints: TopologySpreads = []
    """How evenly the pods are spread over zones or nodes."""
    scheduler_name: ObjectName | None = None
    """The scheduler of all pods. By default, the default scheduler of the cluster."""
    priority_class_name: ObjectName | None = None
    """The PriorityClass of all pods."""
    requests: Requests | None = None
    """The resource requests of all pods, if they are lower than the limits: for small or shared
    nodes. By default, requests are equal to limits."""
    head: Head = Head()
    """The head pod."""
    workers: Workers = Workers()
    """The worker group `cpu`, for reading, writing and all steps that need only CPUs."""
    queue_name: QueueName | None = None
    """The Kueue LocalQueue in which the job waits for quota. Each attempt is created suspended, and
    starts when Kueue admits it."""
    queue_priority_class_name: QueueName | None = None
    """The WorkloadPriorityClass of the job in this queue."""
    topology: Topology | None = None
    """Where Kueue places the pods of steps with devices or memory requests."""
    fallback: Fallback = Fallback()
    """Which nodes the next attempt tries if there is no capacity."""
    gang_scheduling: bool | None = None
    """Whether the head and `replicas.min` of all steps start together or not at all, as in a queue
    of Kueue. KubeRay must use Volcano, YuniKorn or KAI. By default, replicas start one by one."""
    limits: Limits = Limits()
    """Limits on the resources of the job."""
    ray_start_params: Annotated[dict[GroupName, RayStartParams], Field(max_length=32)] = {}
    """Options of `ray start` by group: `head`, `cpu`, the name of another worker group, or `*` for
    all groups. The options of a group override the options of `*`."""
    idle_timeout: Duration | None = None
    """How long a worker must be idle before the autoscaler removes it. 60s by default."""
    termination_grace_period: GracePeriod | None = None
    """The grace period of the pods before they are killed, at most 60s. By default 5s for the head,
    and 30s for workers, as time to commit their results."""
    profiles: Profiles = {}
    """How pods on this cluster request each `acceleratorType` and `custom` resource of steps, by
    name. The profile `GPU` is for GPUs of any type. `GPU` (nvidia.com/gpu) and `NPU`
    (huawei.com/Ascend910) are built in. A profile of the same name overrides the fields it sets."""

    def _check(self) -> None:
        check_mounts(self.volumes, self.volume_mounts)
