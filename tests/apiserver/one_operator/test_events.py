"""The Events of jobs on a real API server."""

from __future__ import annotations

from typing import Any

from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import soon
from support.servers.api_server import ApiServer, Namespace

Object = dict[str, Any]


def events(server: ApiServer, namespace: Namespace) -> dict[str, Object]:
    """Return the Events on jobs, by reason."""
    items = server.get(f"/apis/events.k8s.io/v1/namespaces/{namespace.name}/events")["items"]
    return {item["reason"]: item for item in items}


def test_events_show_start_and_success_of_a_job(
    operator_of_all: OperatorProcess, server: ApiServer, namespace: Namespace, job: Any
) -> None:
    played = job()
    played.play_success()
    played.status("Succeeded")
    found = soon(
        "both Events", lambda: (got := events(server, namespace)) and "Succeeded" in got and got
    )
    assert found.keys() == {"AttemptStarted", "Succeeded"}
    assert found["AttemptStarted"]["regarding"]["uid"] == played.body["metadata"]["uid"]
    assert found["Succeeded"]["note"].startswith("10 rows read: 10 written")


def test_repeated_event_is_counted(
    operator_of_all: OperatorProcess, server: ApiServer, namespace: Namespace, job: Any
) -> None:
    played = job()
    played.status("Starting")
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}
    stuck, placed = {"conditions": [told]}, {"conditions": []}
    pod = played.play_pod(stuck)
    for _ in range(2):
        played.status("Pending", "Unschedulable")
        namespace.patch_status("Pod", pod, placed)
        played.status("Starting")
        namespace.patch_status("Pod", pod, stuck)
    played.status("Pending", "Unschedulable")
    soon(
        "a count of three",
        lambda: events(server, namespace)["Unschedulable"].get("series", {}).get("count") == 3,
    )
