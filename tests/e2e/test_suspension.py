"""A suspended job holds no resources, and resumes with the missing rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from e2e.jobs import PAUSED, counts
from support.cluster.kubectl import Kubectl, condition
from support.cluster.object_store import ObjectStore, starts
from support.cluster.waits import (
    JOB_END,
    objects_of_job,
    outcomes,
    suspend,
    wait_for_phase,
    wait_for_rows,
    wait_until_none_is_left,
)

Job = dict[str, Any]


def test_suspended_job_starts_when_released_and_resumes_its_rows(
    kubectl: Kubectl,
    store: ObjectStore,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("pausing", rows=PAUSED)
    job["spec"]["suspend"] = True
    name = create(job)
    assert "attempts" not in wait_for_phase(kubectl, name, "Suspended")
    assert objects_of_job(kubectl, name) == []

    suspend(kubectl, name, False)
    seen = wait_for_rows(kubectl, name)
    suspend(kubectl, name, True)
    status = wait_for_phase(kubectl, name, "Suspended")
    # if KubeRay sees the end of the driver first, the RayJob has ended and stays without a cluster
    wait_until_none_is_left(kubectl, name, "rayclusters,pods")
    assert condition(status, "Ready", "True")
    assert condition(status, "Suspended", "True")
    assert status["observedGeneration"] == 3

    open_gate(job)
    suspend(kubectl, name, False)
    status = kubectl.wait_complete(name, JOB_END)
    assert outcomes(status) == ["Suspended", "Succeeded"]
    assert status.get("failedAttempts", 0) == 0
    assert status["progress"]["percent"] == 100
    assert status["counts"] == counts(PAUSED)
    first, second = starts(store, job["spec"]["write"]["path"])
    assert first == 0
    assert second > seen, "rows that were under way have to be committed on suspension"
