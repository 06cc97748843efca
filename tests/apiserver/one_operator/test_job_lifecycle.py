"""The status and the Events of a job from its creation to its end."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from support.documents.minimal import document
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import OUTPUT, SimulatedJob, soon, stamp
from support.servers.api_server import ApiServer, Namespace, new_namespace
from support.servers.dashboard import Dashboard

Object = dict[str, Any]


@pytest.fixture
def running(shared_operator: OperatorProcess, job: Any) -> SimulatedJob:
    """Return a job whose driver runs and has reported progress."""
    running: SimulatedJob = job()
    running.start_cluster()
    running.start_driver()
    running.report("running", progress={"rows": 410, "total": 1000, "percent": 41})
    running.status("Running")
    return running


def conditions(status: Object) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


def test_a_job_goes_from_pending_to_running(
    shared_operator: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    simulated = job()
    status = simulated.status("Starting", text="RayJob job-1 is starting its cluster")
    assert status["rayJobName"] == "job-1"
    assert conditions(status) == {
        **{"Ready": "False", "Complete": "False", "Failed": "False", "Suspended": "False"},
        **{"Reconciling": "True"},
    }
    simulated.start_cluster()
    simulated.start_driver()
    simulated.status("Starting", text="the driver")
    simulated.report("running", progress={"rows": 1, "total": 4, "percent": 25})
    status = simulated.status("Running", "Running")
    assert status["progress"]["rows"] == 1
    assert status["rayClusterName"] == "job-abcde"
    assert conditions(status)["Ready"] == "False"
    namespace.patch_status("BatchInference", "job", {"phase": "Pending"})
    simulated.status("Running")  # the status of somebody else is overwritten


def test_succeeded_job_releases_its_cluster(running: SimulatedJob) -> None:
    assert running.ray_job["spec"]["ttlSecondsAfterFinished"] > 0
    progress = {
        **{"rows": 820, "total": 1000, "estimated": True, "percent": 82},
        **{"rowsPerSecond": 12.5, "eta": "14s"},
    }
    running.report("running", progress=progress)
    soon("new figures", lambda: running.body["status"]["progress"] == progress)
    counts = {"read": 1000, "written": 990, "failed": 4, "filtered": 6, "warned": 0}
    running.report("succeeded", counts=counts, progress={"rows": 1000, "percent": 100})
    running.write_ray_job_status("Complete", "SUCCEEDED", endTime=stamp())
    status = running.status("Succeeded", "Succeeded")
    assert conditions(status) == {
        **{"Ready": "True", "Complete": "True", "Failed": "False", "Suspended": "False"}
    }
    assert (status["counts"], status["output"]) == (counts, OUTPUT)
    assert status["observedGeneration"] == 1
    assert status["completionTime"] >= status["startTime"]
    assert running.released()
    check_events(running)
    check_no_more_writes(running)


def check_events(job: SimulatedJob) -> None:
    """Check the Events of a job from its start to its success."""
    result = soon(
        "both Events", lambda: (got := events(job.namespace)) and "Succeeded" in got and got
    )
    assert result.keys() == {"AttemptStarted", "Succeeded"}
    assert result["AttemptStarted"]["regarding"]["uid"] == job.body["metadata"]["uid"]
    assert result["Succeeded"]["note"].startswith("1000 rows read: 990 written")


def check_no_more_writes(job: SimulatedJob) -> None:
    """Check that an unchanged job is not written: each write causes a watch event."""
    before = job.body["metadata"]["resourceVersion"]
    job.namespace.patch("RayJob", "job-1", {"metadata": {"labels": {"seen": "again"}}})
    other = SimulatedJob(job.namespace, "other", job.dashboard)
    job.namespace.create(document("other"))
    other.status("Starting")  # by now the operator has handled all earlier events
    assert job.body["metadata"]["resourceVersion"] == before


def events(namespace: Namespace) -> dict[str, Object]:
    """Return the Events on jobs, by reason."""
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace.name}/events"
    return {item["reason"]: item for item in namespace.server.get(path)["items"]}


def test_repeated_event_is_counted(
    shared_operator: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    simulated = job()
    simulated.status("Starting")
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "full",
    }
    stuck, placed = {"conditions": [unschedulable]}, {"conditions": []}
    pod = simulated.create_pod(stuck)
    for _ in range(2):
        simulated.status("Pending", "Unschedulable")
        namespace.patch_status("Pod", pod, placed)
        simulated.status("Starting")
        namespace.patch_status("Pod", pod, stuck)
    simulated.status("Pending", "Unschedulable")
    soon(
        "a count of three",
        lambda: events(namespace)["Unschedulable"].get("series", {}).get("count") == 3,
    )


def test_concurrent_jobs_are_isolated(
    shared_operator: OperatorProcess, server: ApiServer, dashboard: Dashboard, job: Any
) -> None:
    """Jobs with two names in one namespace, and with one name in two namespaces."""
    other = new_namespace(server, f"other-{uuid.uuid4().hex[:8]}")
    other.create(document("one"))
    jobs = [job("one"), job("two"), SimulatedJob(other, "one", dashboard)]
    for simulated in jobs:
        simulated.start_cluster()
        simulated.start_driver()
    assert len({simulated.dashboard.tokens[simulated.host] for simulated in jobs}) == 3
    for rows, simulated in enumerate(jobs):
        counts = {"read": rows, "written": rows, "failed": 0, "filtered": 0}
        simulated.report("succeeded" if rows else "failed", reason="BadInput", counts=counts)
    assert jobs[0].status("Failed", "BadInput")["counts"]["read"] == 0
    assert jobs[1].status("Succeeded")["counts"]["read"] == 1
    assert jobs[2].status("Succeeded")["counts"]["read"] == 2
