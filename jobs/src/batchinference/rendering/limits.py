"""Checks that worker groups cannot grow beyond the limits of a job.

No group is reduced silently. The operator cannot know which of several groups should get less, and
the job would be slower than its file says.
"""

from __future__ import annotations

from collections.abc import Sequence

from batchinference.plan import CPU_GROUP, WorkerGroup
from batchinference.rendering.devices import device_count
from batchinference.rendering.pods import head_size
from batchinference.spec.cluster import Cluster
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem

Shares = list[tuple[str, float, int]]
"""Groups of pods: the name, the amount that each pod has, and the maximum number of pods."""


def check_limits(cluster: Cluster, groups: Sequence[WorkerGroup]) -> list[Problem]:
    """Return a problem for each of `cluster.limits` that the job could exceed."""
    head, _ = head_size(cluster)
    devices: Shares = [
        (group.name, device_count(group, cluster.profiles), group.max) for group in groups
    ]
    cpus: Shares = [("head", head, 1), *((group.name, group.cpus, group.max) for group in groups)]
    found = [
        _check("gpu", "devices", devices, cluster.limits.gpu),
        _check("cpu", "CPUs", cpus, cluster.limits.cpu),
    ]
    return [problem for problem in found if problem is not None]


def check_priority(spec: BatchInferenceSpec) -> list[Problem]:
    """Return a problem if the priority is above `cluster.limits.priority`."""
    most = spec.cluster.limits.priority
    if most is None or spec.priority <= most:
        return []
    message = f"at most {most} is allowed, got {spec.priority}: lower it"
    return [Problem("spec.priority", message)]


def _check(field: str, unit: str, shares: Shares, limit: float | None) -> Problem | None:
    most = sum(each * count for _, each, count in shares)
    if limit is None or most <= limit:
        return None
    parts = ", ".join(f"{name} {count} x {each:g}" for name, each, count in shares if each)
    own = any(name == CPU_GROUP and each for name, each, _ in shares)
    fields = "replicas.max or cluster.workers.max" if own else "replicas.max"
    message = (
        f"the job may grow to {most:g} {unit} ({parts}) and {limit:g} are allowed: lower {fields}, "
        f"or raise the limit, in the job and where the platform's defaults have one"
    )
    return Problem(f"spec.cluster.limits.{field}", message)
