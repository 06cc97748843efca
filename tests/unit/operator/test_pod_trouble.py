"""Why a pod does not run, in one word and in its own words."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec.causes import Cause
from batchinference_operator.status.pods import Trouble, trouble_of
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
def test_container_waiting_for_a_permanent_error_is_trouble(reason: str, cause: Cause) -> None:
    pod = pod_body(**waiting(reason, "in its own words"))
    assert trouble_of(pod) == Trouble(cause, "in its own words")
    assert trouble_of(pod_body(**waiting(reason))) == Trouble(cause, reason)


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", "SomethingNew"])
def test_a_container_that_waits_for_its_turn_is_no_trouble(reason: str) -> None:
    assert trouble_of(pod_body(**waiting(reason))) is None


def test_an_unschedulable_pod_gives_the_schedulers_words() -> None:
    trouble = trouble_of(pod_body(conditions=[{"type": "Ready", "status": "False"}, UNSCHEDULABLE]))
    assert trouble == Trouble(Cause.UNSCHEDULABLE, UNSCHEDULABLE["message"])


def test_a_pod_that_has_found_its_node_is_no_trouble() -> None:
    scheduled = {"type": "PodScheduled", "status": "True"}
    assert trouble_of(pod_body(conditions=[scheduled])) is None


@pytest.mark.parametrize(
    "state",
    [
        {},
        None,
        {"running": {"startedAt": "2026-03-01T12:00:00Z"}},
        {"terminated": {"reason": "Completed", "exitCode": 0}},
        {"terminated": {"reason": "Error", "exitCode": 1}},
    ],
    ids=["unknown", "null", "running", "completed", "error"],
)
def test_other_states_of_a_container_are_no_trouble(state: Any) -> None:
    assert trouble_of(pod_body(containerStatuses=[{"name": "ray", "state": state}])) is None


KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


@pytest.mark.parametrize(
    "states",
    [
        {"state": KILLED},
        {**waiting("CrashLoopBackOff")["containerStatuses"][0], "lastState": KILLED},
    ],
    ids=["killed", "again-and-again"],
)
def test_a_container_that_was_killed_for_its_memory_says_so(states: dict[str, Any]) -> None:
    trouble = trouble_of(pod_body(containerStatuses=[{**states, "name": "ray"}]))
    words = "container ray was killed: it used more memory than its pod's limit"
    assert trouble == Trouble(Cause.OUT_OF_MEMORY, words)


def test_it_is_healed_when_the_container_runs_again() -> None:
    again = {"name": "ray", "state": {"running": {}}, "lastState": KILLED}
    assert trouble_of(pod_body(containerStatuses=[again])) is None


def test_init_containers_count_and_come_first() -> None:
    status = {
        "initContainerStatuses": waiting("ImagePullBackOff", "first")["containerStatuses"],
        "containerStatuses": waiting("CrashLoopBackOff", "second")["containerStatuses"],
    }
    assert trouble_of(pod_body(**status)) == Trouble(Cause.IMAGE_PULL, "first")


def test_a_later_container_may_be_the_one_in_trouble() -> None:
    healthy = {"name": "ray", "state": {"running": {}}}
    sidecar = waiting("CrashLoopBackOff", "autoscaler")["containerStatuses"][0]
    pod = pod_body(containerStatuses=[healthy, sidecar])
    assert trouble_of(pod) == Trouble(Cause.CRASH_LOOP, "autoscaler")


@pytest.mark.parametrize("status", [None, {}], ids=["null", "empty"])
def test_a_pod_without_a_status_is_no_trouble(status: Any) -> None:
    assert trouble_of({**pod_body(), "status": status}) is None


@pytest.mark.parametrize(
    "status",
    [waiting("ImagePullBackOff"), {"conditions": [UNSCHEDULABLE]}],
    ids=["waiting", "unschedulable"],
)
def test_a_pod_that_is_being_deleted_is_no_trouble(status: Any) -> None:
    pod = pod_body(**status)
    pod["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    assert trouble_of(pod) is None
