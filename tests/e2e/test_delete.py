"""Deleting a BatchInference removes all that was made for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.kubectl import Kubectl, eventually

Job = dict[str, Any]
KINDS = "rayjobs,rayclusters,pods,services,configmaps,secrets"


def belongings(kubectl: Kubectl, name: str) -> list[str]:
    """Whatever is left in the namespace that carries the job's name."""
    return [
        f"{found['kind']} {found['metadata']['name']}"
        for found in kubectl.list(KINDS)
        if found["metadata"]["name"].startswith(name)
    ]


def test_nothing_is_left_of_a_running_job_within_a_minute(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    name = create(slow_job("deleted"))
    eventually(
        "rows are done", lambda: kubectl.status(name).get("progress", {}).get("rows"), timeout=180
    )
    kinds = {belonging.split()[0] for belonging in belongings(kubectl, name)}
    assert {"RayJob", "RayCluster", "Pod", "ConfigMap", "Secret"} <= kinds
    kubectl("delete", "bi", name)
    gone(kubectl, name, "")


def test_nothing_is_left_of_a_job_that_never_started(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = slow_job("pending")
    job["spec"]["cluster"]["image"] = "localhost:5000/batchinference/no-such-image:v0"
    name = create(job)
    eventually("it waits", lambda: kubectl.status(name).get("phase") == "Pending", timeout=60)
    eventually("its head is there", lambda: "Pod" in str(belongings(kubectl, name)), timeout=60)
    kubectl("delete", "bi", name)
    gone(kubectl, name, "")


def gone(kubectl: Kubectl, name: str, kind: str) -> None:
    """Wait until no belonging of this kind is left, a minute at most."""
    left: list[str] = []

    def none_left() -> bool:
        left[:] = [found for found in belongings(kubectl, name) if found.startswith(kind)]
        return not left

    try:
        eventually("nothing is left", none_left, timeout=60)
    except AssertionError:
        raise AssertionError(f"left after a minute: {left}") from None


def test_a_finished_job_gives_its_cluster_back(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    name = create(slow_job("released"))
    kubectl.wait_complete(name, timeout=240)
    gone(kubectl, name, "Pod")
