"""The operator is down when a job ends: the job gets the same status and counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from e2e.jobs import GATED, counts
from support.cluster.kubectl import Kubectl, condition, eventually
from support.cluster.waits import wait_for_phase

pytestmark = [pytest.mark.long("operator-downtime"), pytest.mark.timeout(600)]
Job = dict[str, Any]
AWAY_SECONDS = 180
UNDISTURBED = {
    "phase": "Succeeded",
    "counts": counts(GATED),
    "progress": {"rows": GATED, "total": GATED, "percent": 100},
    "conditions": {"Ready": "True", "Complete": "True", "Failed": "False", "Suspended": "False"},
    "reason": "Succeeded",
    "generation": 1,
}
"""The final status of a job whose operator is never away."""


def final(status: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a status that do not depend on the operator's absence: no times, speeds
    and names."""
    progress = {key: status["progress"][key] for key in ("rows", "total", "percent")}
    conditions = {result["type"]: result["status"] for result in status["conditions"]}
    reason = (condition(status, "Complete", "True") or {}).get("reason")
    return {
        "phase": status["phase"],
        "counts": status["counts"],
        "progress": progress,
        "conditions": conditions,
        "reason": reason,
        "generation": status["observedGeneration"],
    }


def test_operator_reads_the_report_after_three_minutes_of_downtime(
    operator: Kubectl,
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("away")
    name = create(job)
    wait_for_phase(kubectl, name, "Running")
    operator("scale", "deployment", "--all", "--replicas=0")
    left = time.monotonic()
    try:
        open_gate(job)
        eventually("the RayJob ends", lambda: ended(kubectl, name), 150)
        assert not condition(kubectl.status(name), "Complete", "True")
        # the test is about the long absence: there is no condition to wait for
        time.sleep(max(0.0, left + AWAY_SECONDS - time.monotonic()))
    finally:
        operator("scale", "deployment", "--all", "--replicas=2")
    assert final(kubectl.wait_complete(name, 120)) == UNDISTURBED


def ended(kubectl: Kubectl, name: str) -> bool:
    ray_job = kubectl.get("rayjob", f"{name}-1") or {}
    return bool(ray_job.get("status", {}).get("jobDeploymentStatus") == "Complete")
