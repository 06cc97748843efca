"""The view of a RayJob, with any complete or partial status from KubeRay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

from batchinference.rendering import GENERATION, RELEASED
from batchinference.spec.report import failure_line
from batchinference_operator.status.conditions import MAX_MESSAGE
from batchinference_operator.status.ray_job_view import MAX_GROUPS, MAX_LOG, RayJobView, owner_uid
from support.operator.objects import OTHER_UID, SUCCEEDED, UID, owner, ray_job_body

RAY_STATES = ["", "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
KUBERAY_STATES = [
    *("", "Initializing", "Waiting", "Running", "Complete", "Failed", "ValidationFailed"),
    *("Suspending", "Suspended", "Retrying"),
]
EXPECTED: dict[str, Callable[[str, str], bool]] = {
    "ended": lambda ray, kuberay: kuberay in {"Complete", "Failed", "ValidationFailed"},
    "succeeded": lambda ray, kuberay: (ray, kuberay) == ("SUCCEEDED", "Complete"),
    "driver_started": lambda ray, kuberay: ray not in {"", "PENDING"},
}
"""The expected value of each property, from the states of Ray and of KubeRay."""


def view(**status: Any) -> RayJobView:
    return RayJobView.of(ray_job_body(**status))


def test_ray_job_without_status_has_empty_fields() -> None:
    seen = RayJobView.of({"metadata": {"name": "job-1"}})
    assert (seen.name, seen.owner_uid, seen.cluster_retained, seen.deleting) == (
        "job-1",
        None,
        False,
        False,
    )
    empty = ("job_status", "deployment_status", "reason", "message", "cluster", "head_ip",
             "head_service", "ended_at")  # fmt: skip
    assert {field: getattr(seen, field) for field in empty} == dict.fromkeys(empty, "")


@pytest.mark.parametrize(
    "status",
    [None, {}, {"rayClusterStatus": None}, {"rayClusterStatus": {"head": None}}],
    ids=["null", "empty", "no-cluster", "no-head"],
)
def test_incomplete_status_has_empty_fields(status: Any) -> None:
    seen = RayJobView.of({**ray_job_body(), "status": status})
    assert seen.head_ip == ""
    assert not seen.ended


@pytest.mark.parametrize("time", ["2026-03-01T12:00:00+99:99", "2026-03-01t12:00:00z"])
def test_time_that_only_the_api_server_accepts_is_ignored(time: str) -> None:
    seen = view(startTime=time, endTime=time, rayJobInfo={"startTime": time})
    assert (seen.driver_started_at, seen.ended_at) == ("", "")
    began = "2026-03-01T12:00:00Z"
    assert view(startTime=began, rayJobInfo={"startTime": time}).driver_started_at == began


def test_ended_ray_job_has_all_fields() -> None:
    message = {"reason": "AppFailed", "message": "boom", "rayClusterName": "job-1-raycluster-x"}
    seen = view(**SUCCEEDED, **message)
    created = "2026-03-01T12:00:00Z"
    assert (seen.uid, seen.owner_uid, seen.created_at) == ("uid-of-job-1", UID, created)
    assert (seen.head_ip, seen.head_service) == ("10.0.0.7", "job-1-head-svc")
    assert (seen.reason, seen.message, seen.cluster) == ("AppFailed", "boom", "job-1-raycluster-x")
    assert seen.ended_at == "2026-03-01T12:10:00Z"
    assert seen.cluster_retained


def test_ttl_and_deletion_timestamp_give_cluster_retained_and_deleting() -> None:
    body = ray_job_body()
    body["spec"]["ttlSecondsAfterFinished"] = 0
    body["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    seen = RayJobView.of(body)
    assert (seen.cluster_retained, seen.deleting) == (False, True)


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
    ids=["none", "job", "job-among-others", "other-kind", "not-controlling", "no-controller-field",
         "controlling-one"],
)  # fmt: skip
def test_owner_is_the_controlling_batch_inference(references: list[Any], uid: str | None) -> None:
    body = {"metadata": {"name": "job-1", "ownerReferences": references}}
    assert owner_uid(body, "BatchInference") == uid


@pytest.mark.parametrize("name", EXPECTED)
def test_properties_follow_from_both_states(name: str) -> None:
    wrong = [
        (ray, kuberay)
        for ray, kuberay in itertools.product(RAY_STATES, KUBERAY_STATES)
        if getattr(view(jobStatus=ray, jobDeploymentStatus=kuberay), name)
        != EXPECTED[name](ray, kuberay)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("ray", "kuberay", "expected"),
    [
        ("STOPPED", "Complete", "Stopped"),
        ("FAILED", "Complete", "Failed"),
        ("SUCCEEDED", "Complete", "Succeeded"),
        ("", "Complete", "Complete"),
        ("RUNNING", "Failed", "Failed"),
        ("", "ValidationFailed", "ValidationFailed"),
    ],
)
def test_outcome_is_that_of_ray_for_a_complete_ray_job(
    ray: str, kuberay: str, expected: str
) -> None:
    assert view(jobStatus=ray, jobDeploymentStatus=kuberay).outcome == expected


def test_memory_of_groups_is_kept_for_owned_ray_jobs_only() -> None:
    limits = {"containers": [{"resources": {"limits": {"memory": "1Gi"}}}]}
    groups = [{"groupName": f"g{n}", "template": {"spec": limits}} for n in range(4400)]
    body = ray_job_body() | {"spec": {"rayClusterSpec": {"workerGroupSpecs": groups}}}
    assert len(RayJobView.of(body).memory) == MAX_GROUPS
    del body["metadata"]["ownerReferences"]
    assert RayJobView.of(body).memory == ()


def texts_of(value: Any) -> Iterator[str]:
    """Yield all texts in the fields of a view."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from texts_of(one)


def test_every_text_of_a_ray_job_is_bounded() -> None:
    """Users may create thousands of RayJobs with the label of a job and a text of 1 MiB in each
    field, and the operator keeps all views."""
    long = "x" * 2**20
    failure = failure_line(long, long)
    condition = {"type": "ReplicaFailure", "status": "True", "message": long}
    body = ray_job_body(
        **dict.fromkeys(("jobStatus", "jobDeploymentStatus", "reason", "rayClusterName"), long),
        **dict.fromkeys(("jobId", "startTime", "endTime"), long),
        message=f"{long}\n{failure}",
        rayClusterStatus={"head": {"podIP": long, "serviceName": long}, "conditions": [condition]},
        owner_uid=long,
    )
    body["metadata"] |= {"annotations": {RELEASED: long, GENERATION: long}}
    limits = {"containers": [{"resources": {"limits": {"memory": "1Gi"}}}]}
    groups = [{"groupName": long, "template": {"spec": limits}}]
    body["spec"] = {
        "clusterSelector": {"ray.io/cluster": long},
        "rayClusterSpec": {"workerGroupSpecs": groups},
    }
    seen = RayJobView.of(body)
    texts = list(texts_of(tuple(getattr(seen, one.name) for one in fields(seen))))
    assert {len(one) for one in texts if len(one) > 253} == {MAX_MESSAGE, MAX_LOG}
    assert seen.memory == (("x" * 63, "1Gi"),)


def test_template_without_metadata_plans_no_gpus() -> None:
    """Any user may create such a RayJob with the label of a job, so it must not raise an error."""
    body = ray_job_body()
    body["spec"] = {"rayClusterSpec": {"workerGroupSpecs": [{"template": {"spec": {}}}, {}]}}
    assert RayJobView.of(body).uid == body["metadata"]["uid"]
