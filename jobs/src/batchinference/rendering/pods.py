"""Renders the pod templates of the head and of worker groups."""

from typing import Any

from batchinference.plan import WorkerGroup
from batchinference.rendering.config_map import (
    DIGEST_VARIABLES,
    JOB_DIRECTORY,
    config_map_name,
    digest_of,
)
from batchinference.rendering.devices import add_devices, apply_profile, device_count
from batchinference.rendering.fallback import capacity_profile, device_hour, price_text
from batchinference.rendering.kueue import topology_annotations
from batchinference.rendering.names import (
    ATTEMPT_LABEL,
    DEVICE_HOUR,
    DEVICES_LABEL,
    EVICTABLE,
    NODE_TYPE_LABEL,
    RAY_CONTAINER,
    RESTRICTED,
    Names,
    Owner,
    dump,
    dump_given,
    metadata,
)
from batchinference.spec.cluster import Cluster
from batchinference.spec.durations import seconds_of
from batchinference.spec.lifecycle import STOP_SECONDS
from batchinference.spec.problems import Problem, SpecError
from batchinference.spec.profiles import OTHER_IMAGES
from batchinference.spec.quantities import (
    DISK_SPACE,
    cpu_quantity,
    memory_bytes,
    memory_quantity,
    smaller_memory,
)
from batchinference.spec.reserved import END_VARIABLE, NODE_VARIABLE

HEAD_CPUS = 1.0
HEAD_MEMORY = "4Gi"
HEAD_PROCESSES_BYTES = 512 << 20
"""The memory that Ray's processes need on the head."""
OBJECT_STORE_SHARE = 0.3
MIN_OBJECT_STORE_BYTES = 75 << 20
"""Ray's own values for object stores, from `ray._private.ray_constants`."""
HEAD_BUDGET = "PodDisruptionBudget"
JOB_VOLUME = "batchinference-job"
SERVICE_ACCOUNT_VOLUME = "batchinference-kube-api"
SERVICE_ACCOUNT_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_SECONDS = 3607
"""Lifetime of the ServiceAccount token, which the kubelet renews. This is Kubernetes' default."""
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Ray's variable for the seconds that a driver may take to stop before it is killed."""
HEAD_GRACE = "5s"
"""Default grace period of heads. KubeRay starts Ray in a shell that does not forward SIGTERM, so a
longer period would be of no use."""
WORKER_GRACE = "30s"
"""Default grace period of workers, in which replicas finish their batch and store its results."""
END_FILE = "/dev/shm/batchinference-pod-ends"  # noqa: S108 - of the container
"""A file that exists once the pod ends. /tmp may be a volume that pods share, but jobs cannot mount
a volume at /dev/shm."""
_STOP_WORKER = f"""\
end() {{ kill -TERM -1; exit; }}
timeout -k 1 8 ray drain-node --address "$RAY_ADDRESS" --reason DRAIN_NODE_REASON_PREEMPTION \
  --reason-message "the pod ends" --deadline-remaining-seconds 60 || end
sleep 2
touch {END_FILE}
while timeout 2 bash -c ': 2>/dev/null <"/dev/tcp/${{RAY_ADDRESS/://}}"'; do sleep 1; done
end
"""
"""Runs before a worker is stopped. First, Ray schedules no more tasks on the node. Then END_FILE
makes the processes on the node end after their batch. The driver fetches their results until the
grace period is over or the head is gone. Without timeouts, `ray` would wait for a lost head."""


PROTECTION = {EVICTABLE: "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations that keep heads from being evicted, because the loss of a head ends all workers."""


def head_template(cluster: Cluster, names: Names, files: dict[str, str]) -> dict[str, Any]:
    """Return the template of the head pod, which runs Ray's services and the driver. The head
    mounts the files of the attempt. Cluster autoscalers do not evict it, except if the job sets the
    annotation EVICTABLE to true."""
    template = _template(cluster, names, _resources(cluster, *head_size(cluster)))
    if cluster.annotations.get(EVICTABLE) != "true":
        template["metadata"]["annotations"] = {**PROTECTION, **cluster.annotations}
    spec, head = template["spec"], cluster.head
    if head.node_selector is not None:
        spec["nodeSelector"] = head.node_selector
    if head.tolerations is not None:
        spec["tolerations"] = [dump(toleration) for toleration in head.tolerations]
    _request_disk_space(spec, head.ephemeral_storage or cluster.ephemeral_storage)
    digests = {DIGEST_VARIABLES[name]: digest_of(file) for name, file in files.items()}
    has_images = any(profile.image for profile in cluster.profiles.values())
    others = {OTHER_IMAGES: "true"} if has_images else {}
    spec["containers"][0]["env"][:0] = [
        {"name": name, "value": value}
        for name, value in {STOP_WAIT: str(STOP_SECONDS), **digests, **others}.items()
    ]
    mount = {"name": JOB_VOLUME, "mountPath": JOB_DIRECTORY, "readOnly": True}
    spec["containers"][0]["volumeMounts"].append(mount)
    source = {"name": config_map_name(names, files)}
    spec["volumes"].append({"name": JOB_VOLUME, "configMap": source})
    return template


def head_budget(namespace: str | None, names: Names, owner: Owner | None) -> dict[str, Any]:
    """Return the PodDisruptionBudget that makes `kubectl drain` wait for the end of an attempt. The
    `owner` must be the RayJob. A head that is not ready may be evicted."""
    head = {**names.labels, ATTEMPT_LABEL: str(names.attempt), NODE_TYPE_LABEL: "head"}
    return {
        "apiVersion": "policy/v1",
        "kind": HEAD_BUDGET,
        "metadata": metadata(names.head_budget, namespace, names.labels, owner),
        "spec": {
            "minAvailable": 1,
            "selector": {"matchLabels": head},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def mount_service_account(pod: dict[str, Any]) -> dict[str, Any]:
    """Add a volume with the ServiceAccount files to the pod, in place, and return its mount for a
    container. Kubernetes does this itself for pods with `automountServiceAccountToken`."""
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
    """Return the CPUs and memory of the head pod."""
    return cluster.head.cpu or HEAD_CPUS, cluster.head.memory or HEAD_MEMORY


def object_store_bytes(memory: str) -> int:
    """Return the size of the object store of a head with this memory. It is Ray's default share of
    the memory that Ray's processes do not need, but at least Ray's minimum. Ray itself would use
    the free memory at startup, which may be too little on a small head."""
    free = memory_bytes(memory) - HEAD_PROCESSES_BYTES
    return max(MIN_OBJECT_STORE_BYTES, int(free * OBJECT_STORE_SHARE))


def worker_template(
    cluster: Cluster,
    names: Names,
    group: WorkerGroup,
    disk_bytes: int = 0,
    *,
    falls_back: bool = False,
) -> dict[str, Any]:
    """Return the pod template of a worker group whose steps need `disk_bytes` on each pod. With
    `falls_back`, add the profile of the capacity type of the attempt."""
    resources = _resources(cluster, group.cpus, group.memory)
    template = _template(cluster, names, resources)
    _request_disk_space(template["spec"], cluster.ephemeral_storage, disk_bytes)
    if topology := topology_annotations(cluster.topology, group):
        template["metadata"].setdefault("annotations", {}).update(topology)
    node = {"name": NODE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    container = template["spec"]["containers"][0]
    container["env"][:0] = [node, {"name": END_VARIABLE, "value": END_FILE}]
    container["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/bash", "-c", _STOP_WORKER]}}}
    grace = cluster.termination_grace_period or WORKER_GRACE
    template["spec"]["terminationGracePeriodSeconds"] = seconds_of(grace)
    add_devices(template["spec"], group, cluster.profiles)
    if falls_back and (capacity := capacity_profile(cluster)):
        apply_profile(template["spec"], capacity)
    if devices := device_count(group, cluster.profiles):
        template["metadata"]["labels"][DEVICES_LABEL] = str(devices)
        if (price := device_hour(group, cluster)) is not None:
            template["metadata"].setdefault("annotations", {})[DEVICE_HOUR] = price_text(price)
    return template


def _template(cluster: Cluster, names: Names, resources: dict[str, Any]) -> dict[str, Any]:
    if cluster.image is None:
        message = "no image. Set spec.cluster.image, or a default in the operator's chart"
        raise SpecError([Problem("spec.cluster.image", message)])
    ray = {
        "name": RAY_CONTAINER,
        "image": cluster.image,
        "resources": resources,
        "env": [dump(variable) for variable in cluster.env],
        "volumeMounts": [dump_given(mount) for mount in cluster.volume_mounts],
        "securityContext": RESTRICTED,
        # the operator reports the last lines of the log of a failed pod
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if cluster.env_from:
        ray["envFrom"] = [dump(source) for source in cluster.env_from]
    if cluster.image_pull_policy:
        ray["imagePullPolicy"] = cluster.image_pull_policy
    spec: dict[str, Any] = {
        # KubeRay replaces a pod whose container has ended, with or without an autoscaler
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": seconds_of(cluster.termination_grace_period or HEAD_GRACE),
        # neither Ray nor the driver uses the Kubernetes API
        "automountServiceAccountToken": False,
        "containers": [ray],
        "volumes": [dump_given(volume) for volume in cluster.volumes],
    }
    own = {**names.labels, ATTEMPT_LABEL: str(names.attempt)}
    metadata: dict[str, Any] = {"labels": {**cluster.labels, **own}}
    if cluster.annotations:
        metadata["annotations"] = dict(cluster.annotations)
    return {"metadata": metadata, "spec": spec | _placement(cluster, own)}


def _placement(cluster: Cluster, own: dict[str, str]) -> dict[str, Any]:
    """Return the settings of `cluster` for all pods, without unset settings. The labels `own`
    select the pods of the attempt."""
    spreads = [{"labelSelector": {"matchLabels": own}, **dump_given(spread)}
               for spread in cluster.topology_spread_constraints]  # fmt: skip
    # change the owner of files only once, because this takes minutes for a large volume
    group = {"fsGroup": cluster.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    settings: dict[str, Any] = {
        "serviceAccountName": cluster.service_account_name,
        "priorityClassName": cluster.priority_class_name,
        "nodeSelector": cluster.node_selector,
        "tolerations": [dump(toleration) for toleration in cluster.tolerations],
        "imagePullSecrets": [dump(secret) for secret in cluster.image_pull_secrets],
        "affinity": dump_given(cluster.affinity) if cluster.affinity else None,
        "topologySpreadConstraints": spreads,
        "schedulerName": cluster.scheduler_name,
        "securityContext": group if cluster.fs_group else None,
    }
    return {name: value for name, value in settings.items() if value}


def _request_disk_space(pod: dict[str, Any], size: str | None, step_bytes: int = 0) -> None:
    """Request disk space for the Ray container, in place: `size`, which the job sets, plus
    `step_bytes`. If `size` is set, the sum is also the limit."""
    if size is None and not step_bytes:
        return
    total = memory_quantity(memory_bytes(size or "0") + step_bytes) if step_bytes else size
    resources = pod["containers"][0]["resources"]
    resources["requests"][DISK_SPACE] = total
    if size is not None:
        resources["limits"][DISK_SPACE] = total


def _resources(cluster: Cluster, cpus: float, memory: str) -> dict[str, dict[str, str]]:
    """Return the limits and the requests, which are equal except where the job lowers requests."""
    limits = {"cpu": cpu_quantity(cpus), "memory": memory}
    configured = cluster.requests
    if configured is None:
        return {"limits": limits, "requests": dict(limits)}
    requests = {
        "cpu": cpu_quantity(min(configured.cpu or cpus, cpus)),
        "memory": smaller_memory(configured.memory, memory),
    }
    return {"limits": limits, "requests": requests}
