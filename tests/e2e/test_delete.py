"""Deleting a BatchInference removes all that was made for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.kubectl import Kubectl, eventually
from support.lives import belongings, rows_are_done

Job = dict[str, Any]
KINDS = "rayjobs,rayclusters,pods,services,configmaps,secrets"


def test_nothing_is_left_of_a_running_job_within_a_minute(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    name = create(slow_job("deleted"))
    rows_are_done(kubectl, name)
    kinds = {belonging.split()[0] for belonging in belongings(kubectl, name, KINDS)}
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
    eventually(
        "its head is there", lambda: "Pod" in str(belongings(kubectl, name, KINDS)), timeout=60
    )
    kubectl("delete", "bi", name)
    gone(kubectl, name, "")


def gone(kubectl: Kubectl, name: str, kind: str) -> None:
    """Wait until no belonging of this kind is left, a minute at most."""
    left: list[str] = []

    def none_left() -> bool:
        left[:] = [found for found in belongings(kubectl, name, KINDS) if found.startswith(kind)]
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
