"""Checks that a RayCluster is not too large and cannot exceed limits, and limits its disk space.

A job above a limit is refused. Its groups are not reduced, because the operator cannot know which
ones to reduce. A reduced job would also be slower than its file implies."""

import json
from collections.abc import Iterator
from typing import Any

from batchinference.plan import CPU_GROUP
from batchinference.rendering.names import DEVICES_LABEL, templates_of
from batchinference.spec.cluster import Limits
from batchinference.spec.problems import Problem
from batchinference.spec.quantities import DISK_SPACE, cpus_of, smaller_memory

GroupAmounts = list[tuple[str, float, int]]
"""For each group of pods: its name, the amount per pod, and the maximum number of pods."""

MAX_CLUSTER_BYTES = 384 << 10
"""Maximum size of the spec of a RayCluster as JSON. The operator skips large fields of a RayJob
whose spec is above 512 KiB. etcd stores objects of at most 1.5 MiB. An object also contains managed
fields, which are about as large as its spec."""


def check_size(ray_cluster: dict[str, Any]) -> Iterator[Problem]:
    """Yield a problem if a RayCluster is too large for the operator or etcd."""
    size = len(json.dumps(ray_cluster, separators=(",", ":"), ensure_ascii=False).encode())
    if size > MAX_CLUSTER_BYTES:
        message = (
            f"the RayJob is too large ({-(-size >> 10)} KiB, at most {MAX_CLUSTER_BYTES >> 10} "
            "KiB): each worker group has a copy of the pod template. Shorten spec.cluster"
        )
        yield Problem("spec.cluster", message)


def limit_disk_space(ray_cluster: dict[str, Any], limit: str | None) -> None:
    """Limit the disk space of the Ray containers, in place. A container without a request gets the
    request 0, because Kubernetes would otherwise use the limit as the request."""
    if limit is None:
        return
    for _, _, template in templates_of(ray_cluster):
        resources = template["spec"]["containers"][0]["resources"]
        limits, requests = resources["limits"], resources["requests"]
        limits[DISK_SPACE] = smaller_memory(limits.get(DISK_SPACE), limit)
        requests[DISK_SPACE] = smaller_memory(requests.get(DISK_SPACE, "0"), limit)


def check_limits(limits: Limits, ray_cluster: dict[str, Any]) -> Iterator[Problem]:
    """Yield a problem if the Ray containers could exceed `limits.devices` or `limits.cpu`, or if
    devices are limited and a pod has ResourceClaims. Other containers are not considered."""
    devices: GroupAmounts = []
    cpus: GroupAmounts = []
    for name, max_pods, template in templates_of(ray_cluster):
        labels, ray = template["metadata"]["labels"], template["spec"]["containers"][0]
        devices.append((name, int(labels.get(DEVICES_LABEL, "0")), max_pods))
        cpus.append((name, cpus_of(ray["resources"]["limits"]["cpu"]), max_pods))
    yield from _check("devices", "devices", devices, limits.devices)
    yield from _check("cpu", "CPUs", cpus, limits.cpu)
    if limits.devices is not None or limits.device_hours is not None:
        yield from _check_claims(ray_cluster)


def _check_claims(ray_cluster: dict[str, Any]) -> Iterator[Problem]:
    """Yield a problem if a pod has ResourceClaims, because their number of devices is unknown."""
    templates = templates_of(ray_cluster)
    claiming = [name for name, _, pod in templates if pod["spec"].get("resourceClaims")]
    if claiming:
        message = (
            "the devices of a resourceClaimTemplateName cannot be counted (group "
            f"{', '.join(claiming)}), and devices are limited. Use `resource` in the profile, or "
            "remove `limits.devices` and `limits.deviceHours` from the job and the platform's "
            "defaults"
        )
        yield Problem("spec.cluster.profiles", message)


def _check(field: str, unit: str, amounts: GroupAmounts, limit: float | None) -> Iterator[Problem]:
    """Yield a problem if all groups together may exceed a limit."""
    total = sum(per_pod * pods for _, per_pod, pods in amounts)
    if limit is None or total <= limit:
        return
    parts = ", ".join(f"{name} {pods} x {per_pod:g}" for name, per_pod, pods in amounts if per_pod)
    has_cpu_group = any(name == CPU_GROUP and per_pod for name, per_pod, _ in amounts)
    fields = "replicas.max or cluster.workers.max" if has_cpu_group else "replicas.max"
    message = (
        f"the job may grow to {total:g} {unit} ({parts}) and {limit:g} are allowed. Lower "
        f"{fields}, or raise the limit (cluster.limits.{field} of the job, defaults.limits.{field} "
        "of the platform)"
    )
    yield Problem(f"spec.cluster.limits.{field}", message)
