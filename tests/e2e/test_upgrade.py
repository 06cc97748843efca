"""An upgrade of the operator disturbs no running job, nor does a second job at the same output."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from batchinference.rendering import NAME_LABEL
from batchinference_operator.kube.limited_json import MAX_BYTES
from e2e.jobs import GATED, counts
from support.cluster.deployment import PIPELINE_IMAGE, helm_test, upgraded
from support.cluster.kubectl import Kubectl
from support.cluster.object_store import RESTRICTED, ObjectStore, pod, starts
from support.cluster.waits import JOB_END, objects_of_job, outcomes, wait_for_reason, wait_for_rows

# two tests that upgrade the operator at the same time would overwrite each other's values
pytestmark = pytest.mark.xdist_group("upgrades")
Job = dict[str, Any]
ONE_PER_NAMESPACE = {"concurrency": {"maxRunningPerNamespace": 1}}
"""Tests of other namespaces run during the upgrade: this limit delays them least."""


def test_upgrade_keeps_running_jobs_and_a_second_writer_is_refused(
    kubectl: Kubectl,
    store: ObjectStore,
    slow_job: Callable[[str], Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("kept")
    name = create(job)
    wait_for_rows(kubectl, name)
    before = uid(kubectl, name)
    other = copy.deepcopy(job)
    other["metadata"]["name"] = "second"
    second = create(other)
    kubectl.apply(large_pod())
    kubectl.status_when(second, "has started", lambda s: s.get("attempts"), 60)
    with upgraded(ONE_PER_NAMESPACE):
        waiting = create(slow_job("waiting"))
        wait_for_reason(kubectl, waiting, "AdmissionPending")
        assert objects_of_job(kubectl, waiting, "rayjobs") == []
        kubectl("delete", "bi", waiting)
        failed = kubectl.wait_condition(second, "Failed", JOB_END)
        open_gate(job)
        status = kubectl.wait_complete(name, JOB_END)
        assert uid(kubectl, name) == before
    assert failed["reason"] == "BadOutput"
    assert f"is being written by {kubectl.namespace}/{name} (" in failed["message"]
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == counts(GATED)
    assert starts(store, job["spec"]["write"]["path"]) == [0]


def large_pod() -> Job:
    """Return a pod that stays pending. With it, the operator reads a list of pods that it does not
    parse as a whole, with values nested more than eight levels deep in the managed fields."""
    container = {"name": "large", "image": PIPELINE_IMAGE, "securityContext": RESTRICTED}
    body = pod("large", [container], [])
    body["metadata"] |= {
        "labels": {NAME_LABEL: "large"},
        # kubectl adds a copy of it, and an object may have annotations of 256 KiB
        "annotations": {"large": "x" * (MAX_BYTES // 2)},
    }
    body["spec"]["nodeSelector"] = {"batchinference.test/node": "none"}
    return body


def uid(kubectl: Kubectl, name: str) -> str:
    return str((kubectl.get("rayjob", f"{name}-1") or {})["metadata"]["uid"])


@pytest.mark.usefixtures("operator")
def test_helm_test_succeeds_when_the_operator_is_ready() -> None:
    assert "Phase:          Succeeded" in helm_test()
