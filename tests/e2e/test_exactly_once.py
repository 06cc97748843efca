"""Only one of several jobs with the same output path writes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from e2e.jobs import GATED
from support.cluster.kubectl import Kubectl, condition
from support.cluster.object_store import ObjectStore, starts
from support.cluster.waits import JOB_END, outcomes, wait_for_rows

Job = dict[str, Any]


def test_second_job_at_an_output_path_is_refused_and_never_writes(
    kubectl: Kubectl,
    store: ObjectStore,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("first")
    first = create(job)
    wait_for_rows(kubectl, first)
    other = copy.deepcopy(job)
    other["metadata"]["name"] = "second"
    failed = kubectl.wait_condition(create(other), "Failed", JOB_END)
    assert failed["reason"] == "BadOutput"
    assert f"is being written by {kubectl.namespace}/{first} (" in failed["message"]
    open_gate(job)
    assert outcomes(kubectl.wait_complete(first, JOB_END)) == ["Succeeded"]

    status = kubectl.wait_complete(create(other), JOB_END)
    complete = condition(status, "Complete", "True")
    assert complete is not None
    assert "complete already" in complete["message"]
    assert status["counts"]["read"] == GATED
    assert starts(store, job["spec"]["write"]["path"]) == [0]
