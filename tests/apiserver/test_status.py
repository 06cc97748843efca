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


def test_status_created_with_the_job_is_dropped(namespace: Namespace) -> None:
    assert "status" not in namespace.create({**document("job"), "status": STATUS})


def test_a_status_is_written_through_the_subresource(namespace: Namespace, job: Object) -> None:
    namespace.patch_status("BatchInference", "job", STATUS)
    assert namespace.get("BatchInference", "job")["status"] == STATUS


def test_a_status_written_with_the_job_is_ignored(namespace: Namespace, job: Object) -> None:
    namespace.patch("BatchInference", "job", {"status": STATUS})
    assert "status" not in namespace.get("BatchInference", "job")


def test_a_spec_written_through_the_subresource_is_ignored(
    namespace: Namespace, job: Object
) -> None:
    other = {**job, "spec": {**job["spec"], "errors": {"maxRows": 5}}, "status": STATUS}
    assert write_status(namespace, other)["spec"] == job["spec"]


def test_a_new_status_is_no_new_generation(namespace: Namespace, job: Object) -> None:
    written = namespace.patch_status("BatchInference", "job", STATUS)
    assert written["metadata"]["generation"] == job["metadata"]["generation"] == 1


def test_outdated_status_update_is_a_conflict(namespace: Namespace, job: Object) -> None:
    namespace.patch_status("BatchInference", "job", STATUS)
    with pytest.raises(Refused, match="the object has been modified") as refusal:
        write_status(namespace, {**job, "status": STATUS})
    assert refusal.value.code == 409


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({**STATUS, "phase": "Sleeping"}, "status.phase: Unsupported value"),
        ({**STATUS, "progress": {"rows": -1}}, "status.progress.rows"),
        ({**STATUS, "progress": {"rows": 1, "percent": 101}}, "status.progress.percent"),
        ({**STATUS, "conditions": [CONDITION, CONDITION]}, "Duplicate value"),
        ({**STATUS, "bogus": 1}, 'unknown field "status.bogus"'),
        ({"phase": "Running"}, "status.conditions: Required value"),
    ],
    ids=["phase", "rows", "percent", "a condition twice", "an unknown field", "no conditions"],
)
def test_invalid_status_is_refused(
    namespace: Namespace, job: Object, status: Object, words: str
) -> None:
    with pytest.raises(Refused, match=words):
        namespace.patch_status("BatchInference", "job", status)
