"""Pod templates of the head and of worker groups."""

from __future__ import annotations

from typing import Any

from batchinference.plan import WorkerGroup
from batchinference.rendering.devices import add_devices
from batchinference.rendering.names import ATTEMPT_LABEL, GPUS_LABEL, Names
from batchinference.rendering.objects import dump
from batchinference.rendering.quantities import cpu_quantity, smaller_memory
from batchinference.spec.cluster import Cluster, Volume
from batchinference.spec.lifecycle import STOP_SECONDS
from batchinference.spec.problems import Problem, SpecError

HEAD_CPUS = 1.0
HEAD_MEMORY = "4Gi"
JOB_DIRECTORY = "/etc/batchinference"
JOB_VOLUME = "batchinference-job"
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""What Ray leaves a driver that is asked to stop."""
GRACE_SECONDS = 5
"""KubeRay starts Ray below a shell, which does not pass SIGTERM on: waiting longer is in vain."""

RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What Pod Security's level `restricted` asks of a container."""


def head_template(cluster: Cluster, names: Names) -> dict[str, Any]:
    """The head pod: Ray's services and the driver, with the job's file mounted."""
    template = _template(cluster, names, "ray-head", _resources(cluster, *head_size(cluster)))
    spec = template["spec"]
    spec["containers"][0]["env"].insert(0, {"name": STOP_WAIT, "value": str(STOP_SECONDS)})
    spec["containers"][0]["volumeMounts"].append(
        {"name": JOB_VOLUME, "mountPath": JOB_DIRECTORY, "readOnly": True}
    )
    spec["volumes"].append({"name": JOB_VOLUME, "configMap": {"name": names.config_map}})
    return template


def head_size(cluster: Cluster) -> tuple[float, str]:
    """CPUs and memory of the head pod."""
    return cluster.head.cpu or HEAD_CPUS, cluster.head.memory or HEAD_MEMORY


def worker_template(cluster: Cluster, names: Names, group: WorkerGroup) -> dict[str, Any]:
    """A pod of a worker group. It never talks to Kubernetes, so it gets no token for it."""
    resources = _resources(cluster, group.cpus, group.memory)
    template = _template(cluster, names, "ray-worker", resources)
    template["spec"]["automountServiceAccountToken"] = False
    add_devices(template["spec"], group, cluster.profiles)
    if group.gpus:
        template["metadata"]["labels"][GPUS_LABEL] = str(group.gpus)
    return template


def _template(
    cluster: Cluster, names: Names, container: str, resources: dict[str, Any]
) -> dict[str, Any]:
    if cluster.image is None:
        message = "no image: set spec.cluster.image, or a default in the operator's chart"
        raise SpecError([Problem("spec.cluster.image", message)])
    ray = {
        "name": container,
        "image": cluster.image,
        "resources": resources,
        "env": [dump(variable) for variable in cluster.env],
        "volumeMounts": [_mount(volume) for volume in cluster.volumes],
        "securityContext": RESTRICTED,
    }
    if cluster.image_pull_policy:
        ray["imagePullPolicy"] = cluster.image_pull_policy
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [ray],
        "volumes": [_volume(volume) for volume in cluster.volumes],
    }
    return {
        "metadata": {"labels": {**names.labels, ATTEMPT_LABEL: str(names.attempt)}},
        "spec": spec | _placement(cluster),
    }


def _placement(cluster: Cluster) -> dict[str, Any]:
    """Settings of the pod that stand only where they are asked for."""
    settings: dict[str, Any] = {
        "serviceAccountName": cluster.service_account_name,
        "priorityClassName": cluster.priority_class_name,
        "nodeSelector": cluster.node_selector,
        "tolerations": [dump(toleration) for toleration in cluster.tolerations],
        "imagePullSecrets": [dump(secret) for secret in cluster.image_pull_secrets],
    }
    return {name: value for name, value in settings.items() if value}


def _resources(cluster: Cluster, cpus: float, memory: str) -> dict[str, dict[str, str]]:
    """Limits, and requests that are the same unless the job asks the scheduler for less."""
    limits = {"cpu": cpu_quantity(cpus), "memory": memory}
    wanted = cluster.requests
    if wanted is None:
        return {"limits": limits, "requests": dict(limits)}
    asked = {
        "cpu": cpu_quantity(min(wanted.cpu or cpus, cpus)),
        "memory": smaller_memory(wanted.memory, memory),
    }
    return {"limits": limits, "requests": asked}


def _mount(volume: Volume) -> dict[str, Any]:
    mount: dict[str, Any] = {"name": volume.name, "mountPath": volume.mount_path}
    return mount | {"readOnly": True} if volume.read_only else mount


def _volume(volume: Volume) -> dict[str, Any]:
    source = dump(volume)
    for ours in ("name", "mountPath", "readOnly"):
        source.pop(ours, None)
    return {"name": volume.name, **source}
