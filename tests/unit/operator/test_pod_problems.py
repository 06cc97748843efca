"""The trouble of a pod: the reason why it does not run, as a cause and a message."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec.causes import Cause
from batchinference_operator.status.pods import PodProblem, problem_of
from support.operator.objects import pod_body, waiting

UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("ErrImagePull", Cause.IMAGE_PULL),
        ("ImagePullBackOff", Cause.IMAGE_PULL),
        ("InvalidImageName", Cause.IMAGE_PULL),
        ("ErrImageNeverPull", Cause.IMAGE_PULL),
        ("CreateContainerConfigError", Cause.CONTAINER_CONFIG),
        ("CreateContainerError", Cause.CONTAINER_CONFIG),
        ("RunContainerError", Cause.CONTAINER_CONFIG),
        ("CrashLoopBackOff", Cause.CRASH_LOOP),
    ],
)
def test_container_that_waits_with_a_permanent_error_is_a_problem(
    reason: str, cause: Cause
) -> None:
    pod = pod_body(**waiting(reason, "boom"))
    assert problem_of(pod) == PodProblem(cause, "boom")
    assert problem_of(pod_body(**waiting(reason))) == PodProblem(cause, reason)


@pytest.mark.parametrize(
    ("back_off", "error"),
    [
        (
            'Back-off pulling image "a:1": ErrImagePull: rpc error: not found',
            "rpc error: not found",
        ),
        ('Back-off pulling image "a:1": rpc error: not found', "rpc error: not found"),
        ('Back-off pulling image "a:1"', 'Back-off pulling image "a:1"'),
    ],
)
def test_message_about_an_image_is_the_same_during_the_back_off(back_off: str, error: str) -> None:
    pod = pod_body(**waiting("ImagePullBackOff", back_off))
    assert problem_of(pod) == PodProblem(Cause.IMAGE_PULL, error)


KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


def container(state: Any, **fields: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "ray", "state": state, **fields}]}


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        waiting("ContainerCreating"),
        waiting("PodInitializing"),
        waiting("SomethingNew"),
        {"conditions": [{"type": "PodScheduled", "status": "True"}]},
        container({}),
        container(None),
        container({"running": {"startedAt": "2026-03-01T12:00:00Z"}}),
        container({"terminated": {"reason": "Completed", "exitCode": 0}}),
        container({"terminated": {"reason": "Error", "exitCode": 1}}),
        container({"running": {}}, lastState=KILLED),
    ],
    ids=["null", "empty", "creating", "initializing", "unknown-reason", "scheduled",
         "unknown-state", "null-state", "running", "completed", "error", "restarted"],
)  # fmt: skip
def test_other_states_are_not_problems(status: Any) -> None:
    assert problem_of({**pod_body(), "status": status}) is None


def test_unschedulable_pod_has_the_message_of_the_scheduler() -> None:
    problem = problem_of(pod_body(conditions=[{"type": "Ready", "status": "False"}, UNSCHEDULABLE]))
    assert problem == PodProblem(Cause.UNSCHEDULABLE, UNSCHEDULABLE["message"])


@pytest.mark.parametrize(
    "status",
    [container(KILLED), container({"waiting": {"reason": "CrashLoopBackOff"}}, lastState=KILLED)],
    ids=["once", "in-backoff"],
)
def test_container_killed_for_memory_is_a_problem(status: dict[str, Any]) -> None:
    message = "container ray was killed: it used more memory than its pod's limit"
    assert problem_of(pod_body(**status)) == PodProblem(Cause.OUT_OF_MEMORY, message)


def test_first_container_with_a_problem_is_named() -> None:
    healthy = container({"running": {}})["containerStatuses"]
    failing, sidecar = (
        waiting(reason, message)["containerStatuses"]
        for reason, message in (("ImagePullBackOff", "first"), ("CrashLoopBackOff", "second"))
    )
    init = pod_body(initContainerStatuses=failing, containerStatuses=sidecar)
    assert problem_of(init) == PodProblem(Cause.IMAGE_PULL, "first")
    later = pod_body(containerStatuses=[*healthy, *sidecar])
    assert problem_of(later) == PodProblem(Cause.CRASH_LOOP, "second")


@pytest.mark.parametrize(
    "status",
    [waiting("ImagePullBackOff"), {"conditions": [UNSCHEDULABLE]}],
    ids=["waiting", "unschedulable"],
)
def test_deleting_pod_is_not_a_problem(status: Any) -> None:
    pod = pod_body(**status)
    pod["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    assert problem_of(pod) is None
