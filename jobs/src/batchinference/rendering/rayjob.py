"""Renders the ConfigMap and the RayJob of one attempt.

The operator creates the RayJob once. Kueue also changes the spec of the RayJob. So the operator
later patches only single fields of it: the deadlines and `ttlSecondsAfterFinished`."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple, Self

from batchinference.plan import Plan, WorkerGroup, plan_for_cluster, serialize_plan
from batchinference.plan.groups import GROUP_LABEL, HEAD_GROUP
from batchinference.rendering.cluster_checks import check_cluster
from batchinference.rendering.config_map import JOB_FILE, JOB_PATH, PLAN_FILE, config_map, job_file
from batchinference.rendering.devices import idle_seconds, start_parameters
from batchinference.rendering.fallback import with_choice
from batchinference.rendering.kueue import (
    ELASTIC_ANNOTATION,
    gang_labels,
    queue_labels,
    scaling_groups,
)
from batchinference.rendering.limits import check_limits, check_size, limit_disk_space
from batchinference.rendering.names import (
    ATTEMPT_LABEL,
    CHOICE,
    GENERATION,
    RESTRICTED,
    Names,
    Owner,
    metadata,
)
from batchinference.rendering.patches import patched
from batchinference.rendering.pods import (
    head_size,
    head_template,
    mount_service_account,
    object_store_bytes,
    worker_template,
)
from batchinference.spec.cluster import ALL_GROUPS, Cluster
from batchinference.spec.durations import seconds_of
from batchinference.spec.job import BatchInference
from batchinference.spec.lifecycle import Deadlines, Ttl
from batchinference.spec.platform_defaults import NO_DEFAULTS, PlatformDefaults
from batchinference.spec.problems import raise_for_problems
from batchinference.spec.status import CHOICE_VARIABLE, Choice

GRACE_SECONDS = 3600
"""Seconds between the deadlines of the operator and of KubeRay for an attempt. The operator must
act first, because it knows the cause. A restart of the operator takes less time than this."""
MAX_SECONDS = 2**31 - 1
"""The largest value that KubeRay accepts."""
KEEP_SECONDS = 600
"""Minimum seconds for which KubeRay keeps the head of a finished cluster, so that the operator can
read the driver's report. Then the operator deletes the cluster itself, after `ttl.cluster`."""


class KubeRayDeadlines(NamedTuple):
    """Seconds after which KubeRay itself acts on a RayJob. None means never."""

    active: int | None = None
    """From the start of the RayJob until KubeRay ends it."""
    pre_running: int | None = None
    """From the start of the RayJob until KubeRay ends it, if its cluster is not ready."""
    kept: int = KEEP_SECONDS
    """From the end of the RayJob until KubeRay deletes its cluster."""

    @classmethod
    def of(
        cls, deadlines: Deadlines, ttl: Ttl, *, queued: bool, counting: bool, waited: int = 0
    ) -> KubeRayDeadlines:
        """Return KubeRay's deadlines of an attempt, which are later than those of the operator.

        KubeRay counts from the start of the RayJob, which is never before its creation. The
        operator counts `pending` and `active` from `waited` seconds after the creation.

        `counting` is false while the operator may restart this count, because a `queued` job has
        gated pods. KubeRay cannot restart a count, so it then gets neither deadline. A queued job
        has no `pre_running`, because gated pods may wait indefinitely."""
        active = _later(deadlines.active, waited) if counting else None
        pending = _later(deadlines.pending, waited) if counting and not queued else None
        ends = [end for end in (active, _later(deadlines.total)) if end is not None]
        return cls(min(ends, default=None), pending).keeping(ttl)

    def keeping(self, ttl: Ttl) -> KubeRayDeadlines:
        """Return these deadlines with `kept` for this TTL."""
        return self._replace(kept=_within(max(KEEP_SECONDS, seconds_of(ttl.cluster))))

    @classmethod
    def in_spec(cls, spec: dict[str, Any]) -> Self:
        """Return the deadlines in the spec of a RayJob."""
        active, kept = spec.get("activeDeadlineSeconds"), spec.get("ttlSecondsAfterFinished", 0)
        return cls(active, spec.get("preRunningDeadlineSeconds"), kept)

    @property
    def fields(self) -> dict[str, int | None]:
        """The fields of the RayJob spec."""
        return {
            "activeDeadlineSeconds": self.active,
            "preRunningDeadlineSeconds": self.pre_running,
            "ttlSecondsAfterFinished": self.kept,
        }


def _later(duration: str | None, waited: int = 0) -> int | None:
    """Return the seconds of a deadline, plus `waited` and GRACE_SECONDS. None without a deadline,
    or if the sum is above MAX_SECONDS."""
    if duration is None:
        return None
    seconds = seconds_of(duration) + waited + GRACE_SECONDS
    return seconds if seconds <= MAX_SECONDS else None


def _within(seconds: int) -> int:
    """Return the seconds, at most the 68 years that KubeRay accepts."""
    return min(seconds, MAX_SECONDS)


RAY_API_VERSION = "ray.io/v1"
RAY_JOB = "RayJob"
RAY_CLUSTER = "RayCluster"
RAY_VERSION = "2.60.0"
RAY_LOGS = "/tmp/ray/session_latest/logs"  # noqa: S108 - Ray's own directory in its pods
"""The directory of the driver's report. Ray's dashboard serves its files, even after the driver has
exited."""
IDLE_TIMEOUT = "60s"
"""Default time after which Ray's autoscaler removes an idle pod."""
_AUTOSCALER = {"cpu": "500m", "memory": "512Mi"}
_AUTOSCALER_REQUESTS = {"cpu": "50m", "memory": "256Mi"}
_HEAD_PARAMETERS = {
    "num-cpus": "0",
    "dashboard-host": "0.0.0.0",  # noqa: S104
    # the autoscaler, if any, runs in its own container
    "no-monitor": "true",
}


def attempt_objects(
    job: BatchInference,
    names: Names,
    owner: Owner | None,
    generation: int | None = None,
    platform: PlatformDefaults = NO_DEFAULTS,
    choice: Choice | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the ConfigMap and the RayJob of an attempt of a job with complete cluster settings.
    Raises SpecError if the job cannot run on a cluster. Both have the plan for the job's first
    choice of devices and capacity, which `choice` describes. `generation` is that of the
    BatchInference. `platform` has the patches and limits of pods."""
    all_choices, job = job, with_choice(job, 1)
    plan = plan_for_cluster(job.spec)
    raise_for_problems(check_cluster(all_choices.spec, plan.groups))
    files = {JOB_FILE: job_file(job, names.uid), PLAN_FILE: serialize_plan(plan)}
    own = ray_cluster(job, names, files, plan)
    limit_disk_space(own, platform.limits.ephemeral_storage)
    cluster = patched(own, platform.patches)
    raise_for_problems([*check_limits(job.spec.cluster.limits, own), *check_size(cluster)])
    ray_job = _ray_job(job, names, owner, cluster)
    if generation is not None:
        ray_job["metadata"].setdefault("annotations", {})[GENERATION] = str(generation)
    if choice is not None:
        text = choice.model_dump_json(by_alias=True, exclude_none=True)
        ray_job["metadata"].setdefault("annotations", {})[CHOICE] = text
        head = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
        head["containers"][0]["env"].insert(0, {"name": CHOICE_VARIABLE, "value": text})
    return config_map(job.metadata.namespace, names, files, owner), ray_job


def _ray_job(
    job: BatchInference, names: Names, owner: Owner | None, cluster: dict[str, Any]
) -> dict[str, Any]:
    own, queue = job.spec.cluster, job.spec.cluster.queue_name is not None
    labels = {**own.labels, **names.labels, ATTEMPT_LABEL: str(names.attempt), **queue_labels(own)}
    if own.gang_scheduling:
        labels = gang_labels(own, names) | labels
    about = metadata(names.ray_job, job.metadata.namespace, labels, owner)
    elastic = queue and cluster.get("enableInTreeAutoscaling")
    annotations = {**own.annotations, **({ELASTIC_ANNOTATION: "true"} if elastic else {})}
    if annotations:
        about["annotations"] = annotations
    spec = job.spec
    backstop = KubeRayDeadlines.of(spec.deadlines, spec.ttl, queued=queue, counting=not queue)
    return {
        "apiVersion": RAY_API_VERSION,
        "kind": RAY_JOB,
        "metadata": about,
        "spec": {
            **({"suspend": True} if queue else {}),  # Kueue resumes it at the admission
            "submissionMode": "HTTPMode",
            "entrypoint": entrypoint(),
            "backoffLimit": 0,
            **{name: seconds for name, seconds in backstop.fields.items() if seconds is not None},
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": cluster,
        },
    }


def entrypoint() -> str:
    """Return the command line of the driver. It contains no values of the job."""
    command = ["batchinference", "run", "--address", "auto", "--report-directory", RAY_LOGS]
    return shlex.join([*command, JOB_PATH])


def ray_cluster(
    job: BatchInference, names: Names, files: dict[str, str], plan: Plan
) -> dict[str, Any]:
    """Return the spec of a RayCluster with the worker groups of a plan. The head mounts `files`."""
    cluster, groups = job.spec.cluster, plan.groups
    scales = bool(scaling_groups(groups))
    falling_back = [group for group in groups if group.gpus or group.custom] or groups
    head = head_template(cluster, names, files)
    return {
        "rayVersion": RAY_VERSION,
        **(_autoscaler(head, cluster.idle_timeout or IDLE_TIMEOUT) if scales else {}),
        "authOptions": {"mode": "token", "secretName": names.secret},
        "headGroupSpec": {
            "rayStartParams": _head_parameters(cluster),
            "labels": {GROUP_LABEL: HEAD_GROUP},
            "template": head,
        },
        "workerGroupSpecs": [
            {
                "groupName": group.name,
                # KubeRay waits for all `replicas` before it submits the job
                "replicas": group.min,
                "minReplicas": group.min,
                "maxReplicas": group.max,
                **(_idle_timeout(group, cluster) if scales else {}),
                "rayStartParams": start_parameters(group) | _start_params(cluster, group.name),
                "labels": {GROUP_LABEL: group.name},
                "template": worker_template(
                    cluster, names, group, plan.disk_bytes(group), falls_back=group in falling_back
                ),
            }
            for group in groups
        ],
    }


def _head_parameters(cluster: Cluster) -> dict[str, str]:
    size = str(object_store_bytes(head_size(cluster)[1]))
    own = _start_params(cluster, HEAD_GROUP)
    return {**_HEAD_PARAMETERS, "object-store-memory": size, **own}


def _idle_timeout(group: WorkerGroup, cluster: Cluster) -> dict[str, int]:
    seconds = idle_seconds(group, cluster.profiles)
    return {} if seconds is None else {"idleTimeoutSeconds": _within(seconds)}


def _start_params(cluster: Cluster, group: str) -> dict[str, str]:
    """Return the options of `ray start` in the cluster settings of a group."""
    params = cluster.ray_start_params
    return {**params.get(ALL_GROUPS, {}), **params.get(group, {})}


def _autoscaler(head: dict[str, Any], idle_timeout: str) -> dict[str, Any]:
    """Return the settings of Ray's autoscaler, which KubeRay adds to the head pod as a container.
    Only this container mounts the token of the head's ServiceAccount. The token allows changes of
    all pods and RayClusters in the namespace."""
    mount = mount_service_account(head["spec"])
    return {
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {
            "version": "v2",
            "idleTimeoutSeconds": _within(seconds_of(idle_timeout)),
            "resources": {"limits": _AUTOSCALER, "requests": _AUTOSCALER_REQUESTS},
            "securityContext": RESTRICTED,
            "volumeMounts": [mount],
        },
    }
