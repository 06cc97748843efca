"""A suspended job holds nothing, and goes on from what it has finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.kubectl import Kubectl, condition, eventually
from support.lives import belongings, outcomes, phase_is, rows_are_done, suspend
from support.objectstore import ObjectStore, starts

Job = dict[str, Any]
KINDS = "pods,rayclusters,rayjobs"


def test_a_running_job_frees_all_that_it_holds_and_goes_on_when_it_may(
    kubectl: Kubectl,
    store: ObjectStore,
    slow_job: Callable[[str], Job],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("pausing")
    name = create(job)
    rows_are_done(kubectl, name)
    seen = kubectl.status(name)["progress"]["rows"]
    suspend(kubectl, name, True)
    status = phase_is(kubectl, name, "Suspended")
    assert belongings(kubectl, name, KINDS) == []
    assert condition(status, "Ready", "True")
    assert condition(status, "Suspended", "True")
    assert status["observedGeneration"] == 2

    suspend(kubectl, name, False)
    status = kubectl.wait_complete(name, timeout=300)
    assert outcomes(status) == ["Suspended", "Succeeded"]
    assert "failedAttempts" not in status or status["failedAttempts"] == 0
    assert status["progress"]["percent"] == 100
    assert status["counts"] == {"read": 2000, "written": 1800, "failed": 0, "skipped": 200}
    first, second = starts(store, job["spec"]["write"]["path"])
    assert first == 0
    assert second > seen, "what was under way was committed as well"


def test_a_job_that_is_created_suspended_waits_for_its_release(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = slow_job("waiting")
    job["spec"]["suspend"] = True
    name = create(job)
    assert "attempts" not in phase_is(kubectl, name, "Suspended")
    assert belongings(kubectl, name, KINDS) == []
    suspend(kubectl, name, False)
    eventually("its RayJob", lambda: kubectl.get("rayjob", f"{name}-1"), timeout=30)
    suspend(kubectl, name, True)
    phase_is(kubectl, name, "Suspended")
    assert belongings(kubectl, name, KINDS) == []
