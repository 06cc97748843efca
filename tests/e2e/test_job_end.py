"""Jobs that a deadline or a user ends before they are done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.cluster.kubectl import Kubectl, eventually
from support.cluster.waits import (
    CLUSTER_START,
    JOB_END,
    objects_of_job,
    outcomes,
    pods,
    wait_for_phase,
    wait_for_rows,
    wait_until_none_is_left,
)

Job = dict[str, Any]
ALL_KINDS = "rayjobs,rayclusters,pods,services,configmaps,secrets,poddisruptionbudgets"


def test_active_deadline_fails_the_job_and_frees_its_cluster(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = slow_job("late")
    job["spec"]["deadlines"] = {"active": "5s"}
    name = create(job)
    status = wait_for_phase(kubectl, name, "Failed")
    assert outcomes(status) == ["Failed"]
    # pods that other tests keep waiting for a node are the cause that the status names
    assert status["attempts"][0]["cause"] in ("DeadlineExceeded", "Unschedulable")
    assert "deadlines.active 5s" in status["attempts"][0]["message"]
    wait_until_none_is_left(kubectl, name, "rayclusters,pods")


def test_only_the_head_of_a_finished_job_is_kept(
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("kept")
    job["spec"]["ttl"] = {"cluster": "1h"}
    name = create(job)
    open_gate(job)
    kubectl.wait_complete(name, JOB_END)
    heads = pods(kubectl, name, "head")
    eventually("no worker is left", lambda: not pods(kubectl, name, "worker"), CLUSTER_START)
    assert pods(kubectl, name, "head") == heads


def test_deleting_a_running_job_deletes_all_its_objects(
    kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    name = create(slow_job("deleted"))
    wait_for_rows(kubectl, name)
    kinds = {result.split()[0] for result in objects_of_job(kubectl, name, ALL_KINDS)}
    assert {"RayJob", "RayCluster", "Pod", "ConfigMap", "Secret", "PodDisruptionBudget"} <= kinds
    kubectl("delete", "bi", name)
    wait_until_none_is_left(kubectl, name, ALL_KINDS)
