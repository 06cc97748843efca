"""A schedule with an overdue run, so that tests do not have to wait for a run."""

from __future__ import annotations

from typing import Any

from support.cluster.kubectl import eventually
from support.documents.minimal import schedule_document
from support.servers.api_server import Namespace

SCHEDULE = "BatchInferenceSchedule"


def create_overdue(namespace: Namespace, **spec: Any) -> str:
    """Create a schedule with a run at each new year, and return the name of its only run."""
    yearly = {"schedule": "0 0 1 1 *", "suspend": True, **spec}
    namespace.create(schedule_document(**yearly))
    eventually("a status", lambda: status_of(namespace).get("checkedUntil"), 30, 0.1)
    namespace.patch_status(SCHEDULE, "nightly", {"checkedUntil": "2020-06-01T00:00:00Z"})
    namespace.patch(SCHEDULE, "nightly", {"spec": {"suspend": False}})
    (run,) = eventually("a run", lambda: status_of(namespace).get("active"), 30, 0.1)
    return str(run)


def status_of(namespace: Namespace) -> dict[str, Any]:
    status: dict[str, Any] = namespace.get(SCHEDULE, "nightly").get("status", {})
    return status
