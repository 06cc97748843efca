"""The status of a job that cannot start names the cause. Only one job starts a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.cluster.kubectl import Kubectl
from support.cluster.waits import (
    objects_of_job,
    wait_for_phase,
    wait_for_reason,
    wait_until_none_is_left,
)
from support.documents.minimal import python_step

Job = dict[str, Any]
MISSING_IMAGE = "localhost:5000/batchinference/no-such-image:v0"
ALL_KINDS = "rayjobs,rayclusters,pods,services,configmaps,secrets,poddisruptionbudgets"


def variable_from(secret: str) -> Job:
    return {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": secret, "key": "key"}}}


def test_pods_that_cannot_start_name_the_cause_until_the_deadline(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    no_image, no_secret, no_account = map(slow_job, ("no-image", "no-secret", "no-account"))
    no_image["spec"]["cluster"]["image"] = MISSING_IMAGE
    no_secret["spec"]["cluster"]["env"].append(variable_from("no-such-secret"))
    no_account["spec"]["cluster"]["serviceAccountName"] = "nobody"
    expected = {}
    for job, cause, message in (
        (no_image, "ImagePull", MISSING_IMAGE),
        (no_secret, "ContainerConfig", 'secret "no-such-secret" not found'),
        (no_account, "Refused", "ServiceAccount nobody is not found"),
    ):
        job["spec"]["deadlines"] = {"pending": "40s"}
        expected[create(job)] = cause, message
    for name, (cause, message) in expected.items():
        assert message in wait_for_reason(kubectl, name, cause)["message"]
        (attempt,) = wait_for_phase(kubectl, name, "Failed")["attempts"]
        assert attempt["cause"] == cause
        assert "deadlines.pending 40s" in attempt["message"]
        assert message in attempt["message"]
        assert "Pending" in kubectl.history[name].phases
        assert "Running" not in kubectl.history[name].phases


def test_pending_job_starts_with_its_secret_or_is_deleted_completely(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = slow_job("healed")
    job["spec"]["cluster"]["env"].append(variable_from("late"))
    deleted, healed = create(slow_job("deleted") | {"spec": job["spec"]}), create(job)
    for name in (deleted, healed):
        wait_for_reason(kubectl, name, "ContainerConfig")
    assert any(result.startswith("Pod ") for result in objects_of_job(kubectl, deleted))
    kubectl("delete", "bi", deleted)
    wait_until_none_is_left(kubectl, deleted, ALL_KINDS)
    kubectl("create", "secret", "generic", "late", "--from-literal=key=x")
    status = wait_for_phase(kubectl, healed, "Starting")
    assert "late" not in status["conditions"][0]["message"]


def test_step_that_needs_more_gpus_than_any_node_has_is_unschedulable(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = slow_job("gpus")
    job["spec"]["steps"][0]["resources"] = {"gpu": 64}
    name = create(job)
    # pods of earlier tests may still have the CPUs that another pod needs
    wait_for_reason(kubectl, name, "Unschedulable", says="Insufficient nvidia.com/gpu")
    assert kubectl.latest(name)["phase"] == "Pending"


def test_job_that_would_deadlock_is_refused_without_a_rayjob(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = slow_job("deadlock")
    job["spec"]["steps"] = [python_step(replicas={"min": 4, "max": 4}, resources={"cpu": 2})]
    job["spec"]["cluster"]["workers"] = {"cpu": 4, "max": 2}
    name = create(job)
    failed = kubectl.wait_condition(name, "Failed", 120)
    assert failed["reason"] == "InvalidSpec"
    assert "spec.cluster.workers.max" in failed["message"]
    assert "can never start" in failed["message"]
    assert kubectl.get("rayjob", f"{name}-1") is None
