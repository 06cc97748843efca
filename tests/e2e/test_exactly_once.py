"""Only one of several jobs with the same output path writes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from e2e.jobs import GATED, counts
from support.cluster.kubectl import Kubectl
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
    status = kubectl.wait_complete(first, JOB_END)
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == counts(GATED)
    assert starts(store, job["spec"]["write"]["path"]) == [0]
