"""Pod templates of the head and of worker groups."""

from __future__ import annotations

from typing import Any

from batchinference.plan import WorkerGroup
from batchinference.rendering.devices import add_devices, device_count
from batchinference.rendering.names import ATTEMPT_LABEL, GPUS_LABEL, Names
from batchinference.rendering.objects import DIGEST_VARIABLE, JOB_DIRECTORY, digest_of, dump
from batchinference.rendering.quantities import cpu_quantity, smaller_memory
from batchinference.spec.cluster import Cluster, Volume
from batchinference.spec.lifecycle import STOP_SECONDS
from batchinference.spec.problems import Problem, SpecError
from batchinference.spec.quantities import memory_bytes

HEAD_CPUS = 1.0
HEAD_MEMORY = "4Gi"
HEAD_PROCESSES_BYTES = 512 << 20
OBJECT_STORE_SHARE = 0.3
LEAST_OBJECT_STORE_BYTES = 75 << 20
"""Both as in `ray._private.ray_constants`."""
JOB_VOLUME = "batchinference-job"
SERVICE_ACCOUNT_VOLUME = "batchinference-kube-api"
SERVICE_ACCOUNT_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_SECONDS = 3607
"""As Kubernetes has it; the kubelet renews the token before."""
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


def head_template(cluster: Cluster, names: Names, file: str) -> dict[str, Any]:
    """The head pod: Ray's services and the driver, with the job file mounted."""
    template = _template(cluster, names, "ray-head", _resources(cluster, *head_size(cluster)))
    spec, digest = template["spec"], digest_of(file)
    spec["containers"][0]["env"][:0] = [
        {"name": STOP_WAIT, "value": str(STOP_SECONDS)},
        {"name": DIGEST_VARIABLE, "value": digest},
    ]
    spec["containers"][0]["volumeMounts"].append(
        {"name": JOB_VOLUME, "mountPath": JOB_DIRECTORY, "readOnly": True}
    )
    spec["volumes"].append({"name": JOB_VOLUME, "configMap": {"name": names.config_map(digest)}})
    return template


def mount_service_account(pod: dict[str, Any]) -> dict[str, Any]:
    """Add the files of the pod's ServiceAccount as a volume, as Kubernetes does by itself for pods
    that leave the choice to it. Returns the mount for the container that uses them."""
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}}
    certificate = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    sources = [token, {"configMap": certificate}, {"downwardAPI": {"items": [namespace]}}]
    pod["volumes"].append({"name": SERVICE_ACCOUNT_VOLUME, "projected": {"sources": sources}})
    return {
        "name": SERVICE_ACCOUNT_VOLUME,
        "mountPath": SERVICE_ACCOUNT_DIRECTORY,
        "readOnly": True,
    }


def head_size(cluster: Cluster) -> tuple[float, str]:
    """CPUs and memory of the head pod."""
    return cluster.head.cpu or HEAD_CPUS, cluster.head.memory or HEAD_MEMORY


def object_store_bytes(memory: str) -> int:
    """The size of the head's object store: Ray's share of the memory that its own processes leave,
    and never less than Ray accepts. Ray itself would measure what is free while it starts, which
    may be too little on a small head."""
    free = memory_bytes(memory) - HEAD_PROCESSES_BYTES
    return max(LEAST_OBJECT_STORE_BYTES, int(free * OBJECT_STORE_SHARE))


def worker_template(cluster: Cluster, names: Names, group: WorkerGroup) -> dict[str, Any]:
    """A pod of a worker group."""
    resources = _resources(cluster, group.cpus, group.memory)
    template = _template(cluster, names, "ray-worker", resources)
    add_devices(template["spec"], group, cluster.profiles)
    if devices := device_count(group, cluster.profiles):
        template["metadata"]["labels"][GPUS_LABEL] = str(devices)
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
        # the operator reports the end of the log of a pod that dies
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if cluster.image_pull_policy:
        ray["imagePullPolicy"] = cluster.image_pull_policy
    spec: dict[str, Any] = {
        # KubeRay replaces a pod whose container has ended, with and without an autoscaler
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        # neither Ray nor the driver talks to Kubernetes
        "automountServiceAccountToken": False,
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
