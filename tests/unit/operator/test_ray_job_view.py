"""What the operator takes from a RayJob, whatever KubeRay has written so far."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from batchinference_operator.status.conditions import MAX_MESSAGE
from batchinference_operator.status.observations import RayJobView, owner_uid
from support.operator.objects import OTHER_UID, SUCCEEDED, UID, owner, ray_job_body

RAY_STATES = ["", "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
KUBERAY_STATES = [
    *("", "Initializing", "Waiting", "Running", "Complete", "Failed", "ValidationFailed"),
    *("Suspending", "Suspended", "Retrying"),
]
TRUTH: dict[str, Callable[[str, str], bool]] = {
    "ended": lambda ray, kuberay: kuberay in {"Complete", "Failed", "ValidationFailed"},
    "succeeded": lambda ray, kuberay: (ray, kuberay) == ("SUCCEEDED", "Complete"),
    "driver_started": lambda ray, kuberay: ray not in {"", "PENDING"},
}
"""The expected value of each property, by the states of Ray and of KubeRay."""


def view(**status: Any) -> RayJobView:
    return RayJobView.of(ray_job_body(**status))


def test_ray_job_without_status_has_empty_fields() -> None:
    seen = RayJobView.of({"metadata": {"name": "job-1"}})
    assert seen.name == "job-1"
    assert seen.owner_uid is None
    assert not seen.kept
    assert not seen.deleting
    told = [seen.job_status, seen.deployment_status, seen.reason, seen.message, seen.cluster]
    assert told == [""] * 5
    assert (seen.head_ip, seen.head_service, seen.ended_at) == ("", "", "")


@pytest.mark.parametrize(
    "status",
    [None, {}, {"rayClusterStatus": None}, {"rayClusterStatus": {"head": None}}],
    ids=["null", "empty", "no-cluster", "no-head"],
)
def test_a_status_with_holes_is_no_error(status: Any) -> None:
    seen = RayJobView.of({**ray_job_body(), "status": status})
    assert seen.head_ip == ""
    assert not seen.ended


def test_everything_is_taken_from_a_ray_job_that_has_ended() -> None:
    told = {"reason": "AppFailed", "message": "boom", "rayClusterName": "job-1-raycluster-x"}
    seen = view(**SUCCEEDED, **told)
    assert (seen.uid, seen.owner_uid, seen.created_at) == (
        "uid-of-job-1",
        UID,
        "2026-03-01T12:00:00Z",
    )
    assert (seen.head_ip, seen.head_service) == ("10.0.0.7", "job-1-head-svc")
    assert (seen.reason, seen.message, seen.cluster) == ("AppFailed", "boom", "job-1-raycluster-x")
    assert seen.ended_at == "2026-03-01T12:10:00Z"
    assert seen.kept


def test_a_cluster_that_is_not_to_be_kept_is_not_kept() -> None:
    body = ray_job_body()
    body["spec"]["ttlSecondsAfterFinished"] = 0
    assert not RayJobView.of(body).kept


def test_a_ray_job_with_a_deletion_timestamp_is_deleting() -> None:
    body = ray_job_body()
    body["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    assert RayJobView.of(body).deleting


def test_long_message_is_cut_to_the_limit_of_conditions() -> None:
    assert len(view(message="x" * 20_000).message) == MAX_MESSAGE


@pytest.mark.parametrize(
    ("references", "uid"),
    [
        ([], None),
        ([owner(UID)], UID),
        ([owner("w", kind="Workflow"), owner(UID)], UID),
        ([owner("w", kind="Workflow")], None),
        ([{**owner(UID), "controller": False}], None),
        ([{"kind": "BatchInference", "name": "job", "uid": UID}], None),
        ([{**owner(OTHER_UID), "controller": False}, owner(UID)], UID),
    ],
    ids=[
        "nobody",
        "a-job",
        "a-job-among-others",
        "something-else",
        "not-controlling",
        "controller-unsaid",
        "the-controlling-one",
    ],
)
def test_the_owner_is_the_batch_inference_that_controls(
    references: list[Any], uid: str | None
) -> None:
    body = {"metadata": {"name": "job-1", "ownerReferences": references}}
    assert owner_uid(body, "BatchInference") == uid


@pytest.mark.parametrize("name", TRUTH)
def test_properties_follow_from_both_states(name: str) -> None:
    wrong = [
        (ray, kuberay)
        for ray, kuberay in itertools.product(RAY_STATES, KUBERAY_STATES)
        if getattr(view(jobStatus=ray, jobDeploymentStatus=kuberay), name)
        != TRUTH[name](ray, kuberay)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("ray", "kuberay", "word"),
    [
        ("STOPPED", "Complete", "Stopped"),
        ("FAILED", "Complete", "Failed"),
        ("SUCCEEDED", "Complete", "Succeeded"),
        ("", "Complete", "Complete"),
        ("RUNNING", "Failed", "Failed"),
        ("", "ValidationFailed", "ValidationFailed"),
    ],
)
def test_the_outcome_says_what_kuberays_complete_leaves_open(
    ray: str, kuberay: str, word: str
) -> None:
    assert view(jobStatus=ray, jobDeploymentStatus=kuberay).outcome == word
