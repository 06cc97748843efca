"""Computes the CPUs and devices of a pod from all of its containers."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from batchinference.rendering.quantities import cpus_of

Object = dict[str, Any]
MAX_AMOUNT = 1e18
_NATIVE_DOMAIN = "kubernetes.io"


def running_containers(pod: Object) -> list[Object]:
    """Return the containers of a pod spec that run at the same time, including native sidecars."""
    return [*(pod.get("containers") or []), *_init_containers(pod, sidecars=True)]


def _init_containers(pod: Object, *, sidecars: bool) -> list[Object]:
    found = pod.get("initContainers") or []
    return [one for one in found if (one.get("restartPolicy") == "Always") == sidecars]


def cpus_of_pod(pod: Object) -> float:
    """Return the CPUs that a pod may use. Raises ValueError for an invalid quantity."""
    pod_level = _amounts(pod).get("cpu", 0.0)
    return max(pod_level, _peak(pod, lambda container: _amounts(container).get("cpu", 0.0)))


def containers_without_cpu_limit(pod: Object) -> list[Object]:
    """Return the containers and init containers of a pod spec that have no CPU limit.

    A limit of 0 means no limit. A limit of the whole pod does not count, because older versions of
    Kubernetes drop it.
    """
    found = [*(pod.get("containers") or []), *(pod.get("initContainers") or [])]
    return [
        one
        for one in found
        if not cpus_of(((one.get("resources") or {}).get("limits") or {}).get("cpu", 0))
    ]


def devices_of_pod(pod: Object) -> int:
    """Return the number of devices that a pod requests: extended resources and resource claims.

    Raises ValueError for an invalid quantity.
    """
    claims = len(pod.get("resourceClaims") or [])
    return claims + ceil(_peak(pod, _devices))


def _peak(pod: Object, amount: Callable[[Object], float]) -> float:
    """Return the maximum amount that a pod uses at a time. Init containers run one by one."""
    first = max(map(amount, _init_containers(pod, sidecars=False)), default=0.0)
    start = first + sum(map(amount, _init_containers(pod, sidecars=True)))
    return max(start, sum(map(amount, running_containers(pod))))


def _devices(container: Object) -> float:
    return sum(
        amount
        for name, amount in _amounts(container).items()
        if "/" in name and not name.partition("/")[0].endswith(_NATIVE_DOMAIN)
    )


def _amounts(owner: Object) -> dict[str, float]:
    """Return the amount of each resource of a container or pod: the larger of request and limit."""
    found: dict[str, float] = {}
    for kind in ("requests", "limits"):
        for name, quantity in ((owner.get("resources") or {}).get(kind) or {}).items():
            amount = cpus_of(quantity)
            if not 0 <= amount <= MAX_AMOUNT:
                raise ValueError(f"not a quantity: {quantity}")
            found[name] = max(found.get(name, 0.0), amount)
    return found
