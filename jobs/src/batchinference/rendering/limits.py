"""Checks that a RayCluster is not too large, and cannot grow beyond the limits of a job.

Groups are not reduced silently. The operator cannot know which of several groups to reduce, and the
job would be slower than its file implies.
"""

from __future__ import annotations

import json
from typing import Any

from batchinference.plan import CPU_GROUP
from batchinference.rendering.names import DEVICES_LABEL
from batchinference.rendering.objects import templates_of
from batchinference.rendering.quantities import DISK_SPACE, cpus_of, smaller_memory
from batchinference.spec.limits import Limits
from batchinference.spec.problems import Problem

Shares = list[tuple[str, float, int]]
"""For each group of pods: its name, the amount per pod, and the maximum number of pods."""

MAX_CLUSTER_BYTES = 384 << 10
"""Maximum size of the spec of a RayCluster as JSON. etcd stores objects of up to 1.5 MiB. Their
managed fields are about as large as their spec, and the operator reads specs of up to 512 KiB."""


def check_size(ray_cluster: dict[str, Any]) -> list[Problem]:
    """Return a problem if a RayCluster is too large for the API server."""
    size = _bytes(ray_cluster)
    if size <= MAX_CLUSTER_BYTES:
        return []
    message = (
        f"the RayJob is too large ({-(-size >> 10)} KiB, at most {MAX_CLUSTER_BYTES >> 10} KiB): "
        "each group of pods has its own copy. Shorten it"
    )
    return [Problem("spec.cluster", message)]


def _bytes(value: dict[str, Any]) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def limit_disk_space(ray_cluster: dict[str, Any], most: str | None) -> None:
    """Limit the disk space of the Ray containers, in place. A container that requests none requests
    0 then: without a request, Kubernetes would request the limit."""
    if most is None:
        return
    for _, _, template in templates_of(ray_cluster):
        resources = template["spec"]["containers"][0]["resources"]
        limits, requests = resources["limits"], resources["requests"]
        limits[DISK_SPACE] = smaller_memory(limits.get(DISK_SPACE), most)
        requests[DISK_SPACE] = smaller_memory(requests.get(DISK_SPACE, "0"), most)


def check_limits(limits: Limits, ray_cluster: dict[str, Any]) -> list[Problem]:
    """Return a problem for each of `cluster.limits` that the pods of a RayCluster could exceed.

    Containers that patches of the platform add do not count.
    """
    devices: Shares = []
    cpus: Shares = []
    for name, most, template in templates_of(ray_cluster):
        labels, ray = template["metadata"]["labels"], template["spec"]["containers"][0]
        devices.append((name, int(labels.get(DEVICES_LABEL, "0")), most))
        cpus.append((name, cpus_of(ray["resources"]["limits"]["cpu"]), most))
    found = [
        _check("devices", "devices", devices, limits.devices),
        _check("cpu", "CPUs", cpus, limits.cpu),
        _check_claims(limits, ray_cluster),
    ]
    return [problem for problem in found if problem is not None]


def _check_claims(limits: Limits, ray_cluster: dict[str, Any]) -> Problem | None:
    """Return a problem if devices are limited and a pod has claims, whose size is unknown."""
    if limits.devices is None and limits.device_hours is None:
        return None
    claiming = [
        name
        for name, _, template in templates_of(ray_cluster)
        if template["spec"].get("resourceClaims")
    ]
    if not claiming:
        return None
    message = (
        "the devices of a resourceClaimTemplateName cannot be counted (group "
        f"{', '.join(claiming)}), and devices are limited. Use `resource` in the profile, or "
        "remove the limits devices and deviceHours in the job and in the platform's defaults"
    )
    return Problem("spec.cluster.profiles", message)


def _check(field: str, unit: str, shares: Shares, limit: float | None) -> Problem | None:
    most = sum(each * count for _, each, count in shares)
    if limit is None or most <= limit:
        return None
    parts = ", ".join(f"{name} {count} x {each:g}" for name, each, count in shares if each)
    has_cpu_group = any(name == CPU_GROUP and each for name, each, _ in shares)
    fields = "replicas.max or cluster.workers.max" if has_cpu_group else "replicas.max"
    message = (
        f"the job may grow to {most:g} {unit} ({parts}) and {limit:g} are allowed. Lower {fields}, "
        f"or raise the limit (cluster.limits.{field} of the job, defaults.limits.{field} of the "
        "platform)"
    )
    return Problem(f"spec.cluster.limits.{field}", message)
