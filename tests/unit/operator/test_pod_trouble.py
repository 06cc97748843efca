"""Why a pod does not run, in one word and in its own words."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference_operator.status.observations import PodView, Trouble, trouble_of
from support.operator_objects import pod_body, waiting

UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("ErrImagePull", "ImagePull"),
        ("ImagePullBackOff", "ImagePull"),
        ("InvalidImageName", "ImagePull"),
        ("ErrImageNeverPull", "ImagePull"),
        ("CreateContainerConfigError", "ContainerConfig"),
        ("CreateContainerError", "ContainerConfig"),
        ("RunContainerError", "ContainerConfig"),
        ("CrashLoopBackOff", "CrashLoop"),
    ],
)
def test_a_container_that_waits_for_what_time_does_not_heal_is_trouble(
    reason: str, word: str
) -> None:
    pod = pod_body(**waiting(reason, "in its own words"))
    assert trouble_of(pod) == Trouble(word, "in its own words")
    assert trouble_of(pod_body(**waiting(reason))) == Trouble(word, reason)


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", "SomethingNew"])
def test_a_container_that_waits_for_its_turn_is_no_trouble(reason: str) -> None:
    assert trouble_of(pod_body(**waiting(reason))) is None


def test_an_unschedulable_pod_gives_the_schedulers_words() -> None:
    trouble = trouble_of(pod_body(conditions=[{"type": "Ready", "status": "False"}, UNSCHEDULABLE]))
    assert trouble == Trouble("Unschedulable", UNSCHEDULABLE["message"])


def test_a_pod_that_has_found_its_node_is_no_trouble() -> None:
    scheduled = {"type": "PodScheduled", "status": "True"}
    assert trouble_of(pod_body(conditions=[scheduled])) is None


def test_a_killed_container_names_itself_and_the_cause() -> None:
    killed = {"name": "ray-worker", "state": {"terminated": {"reason": "OOMKilled"}}}
    trouble = trouble_of(pod_body(containerStatuses=[killed]))
    assert trouble is not None
    assert trouble.reason == "OutOfMemory"
    assert "ray-worker" in trouble.message
    assert "memory" in trouble.message


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


def test_init_containers_count_and_come_first() -> None:
    status = {
        "initContainerStatuses": waiting("ImagePullBackOff", "first")["containerStatuses"],
        "containerStatuses": waiting("CrashLoopBackOff", "second")["containerStatuses"],
    }
    assert trouble_of(pod_body(**status)) == Trouble("ImagePull", "first")


def test_a_later_container_may_be_the_one_in_trouble() -> None:
    healthy = {"name": "ray", "state": {"running": {}}}
    sidecar = waiting("CrashLoopBackOff", "autoscaler")["containerStatuses"][0]
    pod = pod_body(containerStatuses=[healthy, sidecar])
    assert trouble_of(pod) == Trouble("CrashLoop", "autoscaler")


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


def test_a_pod_view_names_the_pod_and_its_job() -> None:
    assert PodView.of(pod_body("worker-x", job="doggos")) == PodView("worker-x", "doggos", None)
