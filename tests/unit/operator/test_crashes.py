"""Pods that exit before the driver starts, and that KubeRay replaces repeatedly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchinference.spec.causes import Cause
from batchinference_operator.controller.cache import Cache
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.lost_or_crashed_pods import (
    MAX_HEAD_CRASHES,
    MAX_WORKER_CRASHES,
    current_crashes,
)
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.status.pod_problems import MAX_MESSAGE, Crash, crash_of
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import RayJobView
from plugins.messages import Messages
from support.operator.harness import Harness
from support.operator.objects import CONFIG, INITIALIZING, RUNNING, job_body, pod_body, ray_job_body
from support.operator.reconcile_loop import ReconcileLoop
from support.operator.virtual_time import in_virtual_time, until

Object = dict[str, Any]
AT = "2026-03-01T12:00:30Z"


def ended_pod(name: str = "job-1-head", uid: str = "uid-1", **state: Any) -> Object:
    """Return a pod with a terminated container. `state` overrides fields of the container state."""
    state = {"exitCode": 1, "reason": "Error", "finishedAt": AT, **state}
    body = pod_body(name, containerStatuses=[{"name": "ray-head", "state": {"terminated": state}}])
    body["metadata"]["uid"] = uid
    return body


def test_crash_has_exit_code_and_termination_message() -> None:
    crash = crash_of(ended_pod(message="Traceback:\n  I am a user's ray.py\x1b[2J"))
    assert crash == Crash(
        "uid-1",
        Cause.CRASH_LOOP,
        "pod job-1-head: container ray-head ended with exit code 1: "
        "Traceback: I am a user's ray.py[2J",
        of_head=True,
    )


@pytest.mark.parametrize(
    ("state", "cause", "message"),
    [
        ({"exitCode": 0, "reason": "Completed"}, Cause.CRASH_LOOP, "exit code 0 (Completed)"),
        (
            {"exitCode": 137, "reason": "OOMKilled"},
            Cause.OUT_OF_MEMORY,
            "exit code 137 (OOMKilled)",
        ),
        ({"message": "x" * 5000}, Cause.CRASH_LOOP, "..." + "x" * MAX_MESSAGE),
    ],
)
def test_any_end_of_a_container_is_a_crash(state: Object, cause: Cause, message: str) -> None:
    crash = crash_of(ended_pod("job-1-worker", **state))
    assert crash is not None
    assert (crash.cause, crash.of_head) == (cause, False)
    assert crash.message.endswith(message)


def deleted(body: Object, at: str) -> Object:
    marks = {"deletionTimestamp": at, "deletionGracePeriodSeconds": 5}
    return {**body, "metadata": {**body["metadata"], **marks}}


def of_sidecar(body: Object) -> Object:
    status = body["status"]["containerStatuses"][0]
    return {**body, "status": {"containerStatuses": [{**status, "name": "autoscaler"}]}}


@pytest.mark.parametrize(
    ("body", "crashed"),
    [
        (pod_body(containerStatuses=[{"name": "ray", "state": {"running": {}}}]), False),
        (pod_body(initContainerStatuses=[
            {"name": "wait", "state": {"terminated": {"exitCode": 0}}}]), False),
        (pod_body(initContainerStatuses=[
            {"name": "wait", "state": {"terminated": {"exitCode": 1}}}]), True),
        (of_sidecar(ended_pod()), False),
        ({**ended_pod(), "status": {**ended_pod()["status"], "reason": "Evicted"}}, False),
        (deleted(ended_pod(), "2026-03-01T12:00:35Z"), False),
        (deleted(ended_pod(), "2026-03-01T12:00:36Z"), True),
        (pod_body(phase="Failed", reason="Shutdown"), False),
        (pod_body(phase="Failed", reason="UnexpectedAdmissionError"), True),
    ],
    ids=["runs", "init-done", "init-failed", "sidecar", "evicted", "deleted", "deleted-later",
         "node-shutdown", "node-rejects"],
)  # fmt: skip
def test_deletion_and_eviction_are_not_crashes(body: Object, crashed: bool) -> None:
    assert (crash_of(body) is not None) == crashed


def test_message_of_the_node_that_rejects_a_pod_is_shown(messages: Messages) -> None:
    why = "Allocate failed due to no healthy devices present, which is unexpected"
    crash = crash_of(pod_body(phase="Failed", reason="UnexpectedAdmissionError", message=why))
    assert crash is not None
    assert crash.cause == Cause.NODE_LOST
    messages.check(crash.message)


def test_each_pod_counts_once_for_any_name() -> None:
    cache = Cache(CONFIG)
    cache.set_job(job_body(status={"rayJobName": "job-1", "rayClusterName": "job-1-cluster"}))
    cache.set_ray_job(ray_job_body(**INITIALIZING))
    for uid in ("a", "a", "b", "b", "c"):
        cache.pods.set_pod(ended_pod(uid=uid))
    cache.pods.delete_pod(ended_pod(uid="c"))
    observed = cache.observe(("team", "job"))
    assert observed is not None
    assert [crash.pod for crash in observed.crashes] == ["a", "b", "c"]


def crashes(
    count: int, *, of_head: bool = True, cause: Cause = Cause.CRASH_LOOP
) -> tuple[Crash, ...]:
    return tuple(
        Crash(str(number), cause, f"exit code {number}", of_head) for number in range(count)
    )


def test_crash_before_the_driver_starts_is_reported() -> None:
    loop = ReconcileLoop()
    loop.start()
    loop.crashes = crashes(1)
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Pending", "CrashLoop")
    assert loop.message == "1 pod has ended; the last: exit code 0"
    loop.set_kuberay_status(**RUNNING)
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Starting", "Starting")


@pytest.mark.parametrize(("rows", "phase"), [(0, "Pending"), (10, "Running")])
def test_rejected_worker_is_reported_while_the_driver_runs(rows: int, phase: str) -> None:
    loop = ReconcileLoop()
    loop.run(rows=rows)
    worker = PodView.of(pod_body("job-1-worker"))
    loop.pods = (worker,)
    loop.crashes = crashes(1, of_head=False)
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Running", "Running"), "the driver reports this crash"
    loop.crashes = crashes(1, of_head=False, cause=Cause.NODE_LOST)
    loop.reconcile()
    assert (loop.phase, loop.reason) == (phase, "NodeLost")
    loop.pods = (worker, replace(worker, created_at=1.0, scheduled_at=1.0))
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Running", "Running")


@pytest.mark.parametrize(
    ("pods", "shown"),
    [
        ([("gpus", 5.0, None)], True),
        ([("gpus", 5.0, None), ("gpus", 5.0, 6.0)], True),
        ([("gpus", 6.0, None), ("cpus", 7.0, 7.0)], True),
        ([("gpus", 6.0, 7.0)], False),
        ([("gpus", 6.0, 7.0), ("gpus", 90.0, None)], False),
        ([("gpus", 4.0, 5.0), ("cpus", 90.0, None)], False),
    ],
    ids=["itself", "sibling", "replacement", "replaced", "later-worker", "given-up"],
)
def test_rejection_counts_until_its_group_has_a_new_pod(
    pods: list[tuple[str, float, float | None]], *, shown: bool
) -> None:
    worker = PodView.of(pod_body("job-1-worker"))
    body = pod_body("w", phase="Failed", reason="UnexpectedAdmissionError")
    body["metadata"]["labels"]["ray.io/group"] = "gpus"
    body["metadata"]["creationTimestamp"] = "1970-01-01T00:00:05Z"
    crash = crash_of(body)
    assert crash is not None
    views = [
        replace(worker, group=group, created_at=created, scheduled_at=scheduled)
        for group, created, scheduled in pods
    ]
    status = {"rayClusterName": "job-1-cluster"}
    observed = Observed(JobView.of(job_body(status=status)), pods=tuple(views), crashes=(crash,))
    assert current_crashes(observed) == ((crash,) if shown else [])


@pytest.mark.parametrize("cause", [Cause.CRASH_LOOP, Cause.NODE_LOST])
@pytest.mark.parametrize(
    ("limit", "of_head"), [(MAX_HEAD_CRASHES, True), (MAX_WORKER_CRASHES, False)]
)
def test_attempt_fails_after_too_many_crashes(limit: int, of_head: bool, cause: Cause) -> None:
    loop = ReconcileLoop(retry={"onCause": {"NodeLost": "Fail"}})
    loop.start()
    loop.pods = (PodView.of(pod_body("job-1-head" if of_head else "job-1-worker")),)
    loop.crashes = crashes(limit - 1, of_head=of_head, cause=cause)
    loop.reconcile()
    assert loop.phase == "Pending"
    loop.crashes = crashes(limit, of_head=of_head, cause=cause)
    loop.reconcile()
    assert (loop.phase, loop.attempt["cause"]) == ("Failed", cause)
    assert f"exit code {limit - 1}" in loop.attempt["message"]
    assert loop.reconcile(30).delete_ray_jobs, "the RayJob does not go on"


@pytest.mark.parametrize(
    ("times", "cause"),
    [([None], "NodeLost"), ([1.0], "DeadlineExceeded"), ([], "DeadlineExceeded")],
    ids=["waits", "started", "no-pod"],
)
def test_rejected_head_is_the_cause_at_a_deadline_unless_another_head_has_started(
    times: list[float | None], cause: str
) -> None:
    loop = ReconcileLoop(deadlines={"pending": "10m"})
    loop.start()
    loop.pods = tuple(replace(PodView.of(pod_body()), scheduled_at=at) for at in times)
    loop.crashes = crashes(1, cause=Cause.NODE_LOST)
    loop.reconcile(1)
    loop.reconcile(700)
    assert loop.attempt["cause"] == cause


def test_head_that_ends_with_all_its_workers_is_not_a_crash_loop() -> None:
    loop = ReconcileLoop()
    loop.start()
    workers = crashes(MAX_WORKER_CRASHES, of_head=False)
    loop.crashes = (*crashes(1), *workers)
    loop.reconcile()
    assert loop.phase == "Pending"
    loop.crashes = (*crashes(1, cause=Cause.NODE_LOST), *workers)
    loop.reconcile()
    assert (loop.phase, loop.attempt["cause"]) == ("Failed", "CrashLoop"), "a rejection hides it"


def test_crash_loop_is_retried_if_the_policy_allows_it() -> None:
    loop = ReconcileLoop(retry={"onCause": {"CrashLoop": "Retry"}})
    loop.start()
    loop.crashes = crashes(MAX_HEAD_CRASHES)
    loop.reconcile()
    assert loop.phase == "Retrying"


def test_failed_deletion_of_a_pod_is_not_a_refusal() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedDeleteHeadPod",
               "message": 'FailedDeleteHeadPod\npods "job-1-head" not found'}  # fmt: skip
    body = ray_job_body(rayClusterStatus={"conditions": [failure]})
    assert RayJobView.of(body).pod_creation_error == ""


def test_message_of_a_refusal_is_one_line() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreateHeadPod",
               "message": "FailedCreateHeadPod\npods is forbidden:\n  exceeded quota"}  # fmt: skip
    body = ray_job_body(rayClusterStatus={"conditions": [failure]})
    assert (
        RayJobView.of(body).pod_creation_error
        == "FailedCreateHeadPod pods is forbidden: exceeded quota"
    )


@in_virtual_time
async def test_head_that_dies_at_start_ends_the_job_with_an_event(harness: Harness) -> None:
    async with harness.recorded_operator():
        await harness.start_job()
        await harness.ray_job().start()
        for number in range(MAX_HEAD_CRASHES):
            harness.cluster.put(ended_pod(uid=f"uid-{number}", message="no ray"))
            await until(lambda: harness.reason() == "CrashLoop")
            harness.cluster.delete("Pod", "job-1-head")
        await until(harness.is_finished)
    reasons = {event["reason"]: event["note"] for event in harness.cluster.events.values()}
    assert "exit code 1: no ray" in reasons["CrashLoop"]
    assert "CrashLoop: 5 pods have ended" in reasons["Failed"]
