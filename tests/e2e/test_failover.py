"""The leader is killed with SIGKILL in each phase of a job: the other replica continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.jobs import GATED, PAUSED, SLOT, counts
from support.cluster.deployment import NAMESPACE, PIPELINE_IMAGE, upgraded
from support.cluster.kubectl import Kubectl, eventually
from support.cluster.object_store import ObjectStore
from support.cluster.processes import process_killer
from support.cluster.statuses import WatchingKubectl
from support.cluster.waits import (
    JOB_END,
    outcomes,
    ray_jobs_created,
    suspend,
    wait_for_phase,
    wait_for_reason,
    wait_for_rows,
    wait_until_none_is_left,
)

pytestmark = [pytest.mark.long("operator-failover"), pytest.mark.timeout(600)]
Job = dict[str, Any]
FAILOVER = 20
"""Maximum seconds until the other replica leads."""
THREE_AT_A_TIME = {"concurrency": {"maxRunning": 3}}


def leader() -> str:
    """Return the pod that holds the operators' Lease."""
    lease = Kubectl(NAMESPACE).get("lease", "batch-inference-operator") or {}
    return str(lease.get("spec", {}).get("holderIdentity", "")).rpartition("/")[2]


@pytest.fixture
def fail_over(operator: Kubectl) -> Iterator[Callable[[], None]]:
    """Yield a function that kills the leader's process and waits until the other replica leads.

    A killed process does not release the Lease. Its pod is deleted afterwards, because the kubelet
    would restart the process, which might be faster than the other replica.
    """
    with process_killer(operator, PIPELINE_IMAGE) as killer:

        def kill() -> None:
            pod = leader()
            killer.kill(pod)
            operator("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
            eventually("the other replica leads", lambda: leader() not in ("", pod), FAILOVER)

        yield kill


@pytest.fixture
def resumed(slow_job: Callable[..., Job]) -> Job:
    """Return a job that starts when the slot is open."""
    job = slow_job("resumed", rows=PAUSED)
    job["spec"]["cluster"] |= {"nodeSelector": {SLOT: "open"}}
    return job


@pytest.fixture
def retried(slow_job: Callable[..., Job], store: ObjectStore) -> Job:
    """Return a job whose input does not exist yet."""
    job = slow_job("retried")
    job["spec"]["read"]["paths"] = [store.uri("late")]
    job["spec"]["retry"] = {"backoff": {"initial": "30s"}, "onCause": {"BadInput": "Retry"}}
    return job


@pytest.fixture
def expiring(slow_job: Callable[..., Job]) -> Job:
    """Return a job that is deleted soon after its end."""
    job = slow_job("expiring")
    job["spec"]["ttl"] = {"afterFinished": "15s"}
    return job


def test_leader_kill_in_each_phase_loses_no_attempt_and_no_row(
    *,
    kubectl: WatchingKubectl,
    store: ObjectStore,
    slow_job: Callable[..., Job],
    resumed: Job,
    retried: Job,
    expiring: Job,
    create: Callable[[Job], str],
    open_slot: Callable[[], None],
    open_gate: Callable[[Job], None],
    fail_over: Callable[[], None],
    tmp_path: Path,
) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"line {n}\n" for n in range(GATED)))
    with upgraded(THREE_AT_A_TIME):
        first, second, deleted = create(resumed), create(retried), create(slow_job("deleted"))
        for name in (first, second, deleted):
            kubectl.status_when(name, "has started", lambda s: s.get("attempts"), FAILOVER)
        queued = create(expiring)
        wait_for_phase(kubectl, first, "Pending")
        wait_for_reason(kubectl, queued, "AdmissionPending")
        fail_over()  # while jobs are Pending, Starting and queued

        open_slot()
        wait_for_phase(kubectl, first, "Starting")
        wait_for_phase(kubectl, second, "Retrying")
        fail_over()  # while jobs are Starting, between two attempts and Running

        store.upload(tmp_path, "late")
        for name in (first, deleted):
            wait_for_rows(kubectl, name)
        fail_over()  # while jobs are Running

        suspend(kubectl, first, True)
        kubectl("delete", "bi", deleted, "--wait=false")
        fail_over()  # during a suspension and a deletion
        wait_for_phase(kubectl, first, "Suspended")
        wait_until_none_is_left(kubectl, deleted)

        wait_for_rows(kubectl, queued)
        for job in (resumed, retried, expiring):
            open_gate(job)
        suspend(kubectl, first, False)
        fail_over()  # while a job ends and another one resumes
        wait_for_phase(kubectl, queued, "Succeeded")
        fail_over()  # before a job expires
        eventually("it is deleted", lambda: not kubectl.get("bi", queued), timeout=60)
        statuses = [kubectl.wait_complete(name, JOB_END) for name in (first, second)]

    statuses.append(kubectl.history[queued][-1])
    assert [outcomes(status) for status in statuses] == [
        ["Suspended", "Succeeded"], ["Failed", "Succeeded"], ["Succeeded"]]  # fmt: skip
    assert [s["counts"] for s in statuses] == [counts(PAUSED), counts(GATED), counts(GATED)]
    for job in (resumed, retried, expiring):
        assert store.verified(job["spec"]["write"]["path"])["result"] == "proven"
    assert ray_jobs_created(kubectl, first, second, deleted, queued) == [
        f"{first}-1", f"{first}-2", f"{second}-1", f"{second}-2", f"{deleted}-1", f"{queued}-1"
    ]  # fmt: skip
