"""Events on a real API server, and health while that server is there and while it is not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from batchinference_operator.runtime.watches import PATIENCE
from support.apiserver import ApiServer, Namespace
from support.operator_process import OperatorProcess
from support.played import soon

Object = dict[str, Any]

TURN = 5
"""Seconds that a watch goes on before it begins anew."""


def events(server: ApiServer, namespace: Namespace) -> dict[str, Object]:
    """Those on jobs, by reason."""
    items = server.get(f"/apis/events.k8s.io/v1/namespaces/{namespace.name}/events")["items"]
    return {item["reason"]: item for item in items}


def test_a_person_finds_the_life_of_a_job_in_its_events(
    operator: OperatorProcess, server: ApiServer, namespace: Namespace, job: Any
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


def test_what_happens_again_is_counted_on_its_event(
    operator: OperatorProcess, server: ApiServer, namespace: Namespace, job: Any
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


def test_a_job_whose_spec_is_odd_has_its_words_in_an_event_however_long(
    operator: OperatorProcess, server: ApiServer, namespace: Namespace, job: Any
) -> None:
    """The API server counts bytes, not characters."""
    played = job()
    played.play_cluster()
    played.play_driver()
    played.report("failed", reason="BadInput", message="ä" * 2000)
    played.status("Failed", "BadInput")
    soon("an Event", lambda: "Failed" in events(server, namespace))


@pytest.fixture
def brisk(new_operator: Any, namespace: Namespace) -> OperatorProcess:
    """An operator whose watches begin anew every few seconds."""
    operator: OperatorProcess = new_operator(
        watchNamespaces=[namespace.name],
        extraEnv=[{"name": "BATCHINFERENCE_OPERATOR_WATCH_SECONDS", "value": str(TURN)}],
    )
    operator.start()
    return operator


def test_it_is_unhealthy_while_the_api_server_is_silent_and_well_again_afterwards(
    brisk: OperatorProcess, server: ApiServer, job: Any
) -> None:
    soon("it is ready", lambda: brisk.answers("/readyz") == 200)
    time.sleep(2 * TURN)
    assert brisk.answers("/healthz") == 200, "watches of which there is nothing to tell live too"
    with server.stopped():
        begun = time.monotonic()
        soon("it is unhealthy", lambda: brisk.answers("/healthz") == 503)
        assert time.monotonic() - begun <= PATIENCE * TURN + 1
    soon("it is healthy", lambda: brisk.answers("/healthz") == 200)
    played = job()
    played.play_success()
    played.status("Succeeded")
    assert brisk.stop() == 0
