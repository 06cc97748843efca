"""A job runs while the release is upgraded, rolled back, uninstalled and installed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.jobs import GATED, counts
from support.cluster.deployment import NAMESPACE, RELEASE, rolled_back, uninstalled, upgraded
from support.cluster.kubectl import Kubectl, eventually
from support.cluster.object_store import ObjectStore
from support.cluster.state import REPLICAS
from support.cluster.waits import (
    JOB_END,
    driver_runs,
    outcomes,
    pods,
    ray_jobs_created,
    wait_for_reason,
    wait_for_rows,
)
from support.outputs.rows import rows_of

pytestmark = [pytest.mark.long("lifecycle"), pytest.mark.timeout(900)]
Job = dict[str, Any]
ONE_PER_NAMESPACE = {"concurrency": {"maxRunningPerNamespace": 1}}
WITHOUT_CRDS = {"crds": {"enabled": False}}
"""The values of a downgrade that keeps the newer CRDs."""
CRDS = ("batchinferences.batchinference.dev", "batchinferenceschedules.batchinference.dev")
DOCUMENTED = {
    *(f"CustomResourceDefinition {name}" for name in CRDS),
    f"Secret {RELEASE}-batch-inference-operator-key",
}
"""The objects that outlive the release."""


@dataclass(frozen=True)
class Running:
    """A job whose driver runs until its gate is open."""

    kubectl: Kubectl
    job: Job
    name: str
    before: dict[str, Any]

    def assert_unchanged(self) -> None:
        """Check that the driver runs, in the same attempt."""
        assert driver_runs(self.kubectl, self.name)
        assert identity(self.kubectl, self.name) == self.before


@pytest.fixture
def running(
    kubectl: Kubectl, slow_job: Callable[..., Job], create: Callable[[Job], str]
) -> Running:
    """Return a job that has finished its first rows."""
    job = slow_job("kept")
    name = create(job)
    wait_for_rows(kubectl, name)
    eventually("KubeRay has seen the driver", lambda: driver_runs(kubectl, name), 60)
    before = identity(kubectl, name)
    assert before["attempts"] == [(1, None)]
    return Running(kubectl, job, name, before)


def test_running_job_outlives_upgrade_rollback_and_reinstallation(
    *,
    running: Running,
    kubectl: Kubectl,
    store: ObjectStore,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
    tmp_path: Path,
) -> None:
    with upgraded(WITHOUT_CRDS):
        running.assert_unchanged()
    with rolled_back(ONE_PER_NAMESPACE):
        queued = create(slow_job("queued"))
        wait_for_reason(kubectl, queued, "AdmissionPending")
        running.assert_unchanged()
    end_the_queue(kubectl, queued)
    running.assert_unchanged()
    early = slow_job("early")
    open_gate(early)
    with uninstalled():
        wait_until_only_documented_objects_remain()
        waiting = create(early)
        running.assert_unchanged()
        assert kubectl.status(waiting) == {}
    completes(kubectl, waiting)
    running.assert_unchanged()
    open_gate(running.job)
    completes(kubectl, running.name)
    assert ray_jobs_created(kubectl, running.name, waiting) == [f"{running.name}-1", f"{waiting}-1"]
    assert_each_row_is_written_once(store, running.job, tmp_path)


def identity(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Return what no operation on the release may change: the CRDs, the job, its RayJob, its head
    and its attempts."""
    objects = [*(("crd", crd) for crd in CRDS), ("bi", name), ("rayjob", f"{name}-1")]
    attempts = kubectl.status(name)["attempts"]
    return {
        "uids": [uid(kubectl, kind, each) for kind, each in objects],
        "heads": pods(kubectl, name, "head"),
        "attempts": [(attempt["number"], attempt.get("outcome")) for attempt in attempts],
    }


def uid(kubectl: Kubectl, kind: str, name: str) -> str:
    stored = kubectl.get(kind, name)
    assert stored, f"{kind} {name} is gone"
    return str(stored["metadata"]["uid"])


def end_the_queue(kubectl: Kubectl, queued: str) -> None:
    """Wait until a job that the limit has delayed starts, and delete it."""
    kubectl.status_when(queued, "has started", lambda s: s.get("attempts"), 60)
    kubectl("delete", "bi", queued)


def wait_until_only_documented_objects_remain() -> None:
    left: set[str] = set()

    def only_documented() -> bool:
        left.clear()
        left.update(objects_of_release(Kubectl(NAMESPACE)))
        return left <= DOCUMENTED

    try:
        eventually("only documented objects remain", only_documented, timeout=120, interval=2)
    except AssertionError as error:
        raise AssertionError(f"{error}, but {sorted(left - DOCUMENTED)}") from None
    assert left == DOCUMENTED


def objects_of_release(kubectl: Kubectl) -> set[str]:
    """Return the objects of all kinds, in any namespace or none, with the label of the release."""
    kinds = ",".join(kubectl("api-resources", "--verbs=list", "--output=name").split())
    everywhere = ("--all-namespaces", "--selector", REPLICAS, "--output", "json")
    items = json.loads(kubectl("get", kinds, *everywhere))["items"]
    return {f"{body['kind']} {body['metadata']['name']}" for body in items}


def completes(kubectl: Kubectl, name: str) -> None:
    """Wait until the job is complete, after one attempt whose report the operator has read."""
    status = kubectl.wait_complete(name, JOB_END)
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == counts(GATED)


def assert_each_row_is_written_once(store: ObjectStore, job: Job, directory: Path) -> None:
    output = job["spec"]["write"]["path"]
    assert store.verified(output)["result"] == "proven"
    rows = rows_of(store.download(output.removeprefix(store.uri("")), directory))
    assert sorted(row["text"] for row in rows) == sorted(
        f"line {number}" for number in range(GATED) if number % 10
    )
