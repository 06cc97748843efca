"""An upgrade of the operator does not disturb running jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from e2e.jobs import GATED, counts
from support.cluster.deployment import upgraded
from support.cluster.kubectl import Kubectl
from support.cluster.waits import JOB_END, belongings, outcomes, wait_for_reason, wait_for_rows

Job = dict[str, Any]
ONE_AT_A_TIME = {"concurrency": {"maxRunning": 1}}


@pytest.mark.serial
def test_upgrade_keeps_the_rayjob_of_a_running_job_and_applies_new_limits(
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("kept")
    name = create(job)
    wait_for_rows(kubectl, name)
    before = uid(kubectl, name)
    with upgraded(ONE_AT_A_TIME):
        waiting = create(slow_job("waiting"))
        wait_for_reason(kubectl, waiting, "WaitingForTurn")
        assert belongings(kubectl, waiting, "rayjobs") == []
        kubectl("delete", "bi", waiting)
        open_gate(job)
        status = kubectl.wait_complete(name, JOB_END)
        assert uid(kubectl, name) == before
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == counts(GATED)


def uid(kubectl: Kubectl, name: str) -> str:
    return str((kubectl.get("rayjob", f"{name}-1") or {})["metadata"]["uid"])
