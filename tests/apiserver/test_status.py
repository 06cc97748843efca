"""The status is a subresource: spec and status are written separately."""

from __future__ import annotations

from typing import Any

import pytest

from support.documents.minimal import document
from support.servers.api_server import Namespace, Refused

Object = dict[str, Any]

CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "Succeeded",
    "message": "all rows written",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
    "observedGeneration": 1,
}
STATUS = {"phase": "Running", "observedGeneration": 1, "conditions": [CONDITION]}


@pytest.fixture
def job(namespace: Namespace) -> Object:
    created: Object = namespace.create(document("job"))
    return created


def write_status(namespace: Namespace, body: Object) -> Object:
    """Replace the object through its subresource."""
    path = f"{namespace.path('BatchInference', 'job')}/status"
    answer: Object = namespace.server.call("PUT", path, body, fieldValidation="Strict")
    return answer


def test_status_and_spec_are_written_separately(namespace: Namespace) -> None:
    job = namespace.create({**document("job"), "status": STATUS})
    assert "status" not in job
    namespace.patch("BatchInference", "job", {"status": STATUS})
    assert "status" not in namespace.get("BatchInference", "job")
    other = {**job, "spec": {**job["spec"], "errors": {"maxRows": 5}}, "status": STATUS}
    written = write_status(namespace, other)
    assert (written["spec"], written["status"]) == (job["spec"], STATUS)
    assert written["metadata"]["generation"] == 1


def test_outdated_status_update_is_a_conflict(namespace: Namespace, job: Object) -> None:
    namespace.patch_status("BatchInference", "job", STATUS)
    with pytest.raises(Refused, match="the object has been modified") as refusal:
        write_status(namespace, {**job, "status": STATUS})
    assert refusal.value.code == 409


INVALID = [
    ({**STATUS, "phase": "x" * 65}, "status.phase: Too long"),
    ({**STATUS, "progress": {"rows": -1}}, "status.progress.rows"),
    ({**STATUS, "progress": {"rows": 1, "percent": 101}}, "status.progress.percent"),
    ({**STATUS, "conditions": [CONDITION, CONDITION]}, "Duplicate value"),
    ({**STATUS, "conditions": [CONDITION | {"reason": "two words"}]}, "reason"),
    ({**STATUS, "bogus": 1}, 'unknown field "status.bogus"'),
    ({"phase": "Running"}, "status.conditions: Required value"),
]


def test_names_of_a_newer_operator_are_stored(namespace: Namespace, job: Object) -> None:
    """The definition may be older than the operator."""
    attempt = {"number": 1, "rayJobName": "job-1", "outcome": "Moved", "cause": "BadLuck"}
    newer = {**STATUS, "phase": "Sleeping", "attempts": [attempt]}
    assert namespace.patch_status("BatchInference", "job", newer)["status"] == newer


def test_invalid_status_is_refused(namespace: Namespace, job: Object) -> None:
    for status, message in INVALID:
        with pytest.raises(Refused, match=message):
            namespace.patch_status("BatchInference", "job", status)
