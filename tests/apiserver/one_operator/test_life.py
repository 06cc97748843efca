"""The status of a job from its creation to its end."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from support.documents.minimal import document
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import OUTPUT, PlayedJob, soon, stamp
from support.servers.api_server import ApiServer, Namespace, new_namespace
from support.servers.dashboard import Dashboard

Object = dict[str, Any]


@pytest.fixture
def running(operator_of_all: OperatorProcess, job: Any) -> PlayedJob:
    """Return a job whose driver runs and has reported progress."""
    running: PlayedJob = job()
    running.play_cluster()
    running.play_driver()
    running.report("running", progress={"rows": 410, "total": 1000, "percent": 41})
    running.status("Running")
    return running


def conditions(status: Object) -> dict[str, str]:
    return {found["type"]: found["status"] for found in status["conditions"]}


def test_a_job_goes_from_pending_to_running(operator_of_all: OperatorProcess, job: Any) -> None:
    played = job()
    status = played.status("Starting", words="RayJob job-1 is starting its cluster")
    assert status["rayJobName"] == "job-1"
    assert conditions(status) == {
        **{"Ready": "False", "Complete": "False", "Failed": "False", "Suspended": "False"},
        **{"Reconciling": "True"},
    }
    played.play_cluster()
    played.play_driver()
    played.status("Starting", words="the driver")
    played.report("running", progress={"rows": 1, "total": 4, "percent": 25})
    status = played.status("Running", "Running")
    assert status["progress"]["rows"] == 1
    assert status["rayClusterName"] == "job-abcde"
    assert conditions(status)["Ready"] == "False"


def test_report_of_the_driver_reaches_the_status(running: PlayedJob) -> None:
    progress = {
        **{"rows": 820, "total": 1000, "estimated": True, "percent": 82},
        **{"rowsPerSecond": 12.5, "eta": "14s"},
    }
    counts = {"read": 820, "written": 810, "failed": 7, "skipped": 3}
    running.report("running", progress=progress, counts=counts)
    soon("new figures", lambda: running.body["status"].get("counts") == counts)
    status = running.body["status"]
    assert status["progress"] == progress
    assert status["output"] == OUTPUT


def test_succeeded_job_releases_its_cluster(running: PlayedJob) -> None:
    assert running.ray_job["spec"]["ttlSecondsAfterFinished"] > 0
    counts = {"read": 1000, "written": 990, "failed": 4, "skipped": 6}
    running.report("succeeded", counts=counts, progress={"rows": 1000, "percent": 100})
    running.play("Complete", "SUCCEEDED", endTime=stamp())
    status = running.status("Succeeded", "Succeeded")
    assert conditions(status) == {
        **{"Ready": "True", "Complete": "True", "Failed": "False", "Suspended": "False"},
    }
    assert status["counts"] == counts
    assert status["observedGeneration"] == 1
    assert status["completionTime"] >= status["startTime"]
    assert running.released()


def test_job_stays_finalizing_during_the_output_check(running: PlayedJob) -> None:
    running.report("finalizing", progress={"rows": 1000, "percent": 100})
    status = running.status("Finalizing")
    assert conditions(status)["Complete"] == "False"


def messages(status: Any) -> set[str]:
    """Return the messages of the conditions that are about the failure."""
    about = ("Ready", "Failed", "Stalled")
    return {found["message"] for found in status["conditions"] if found["type"] in about}


def test_failed_job_has_the_message_of_the_driver(running: PlayedJob) -> None:
    words = "12 of 1000 rows failed, which is more than the 10 that errors.maxRows allows"
    running.report("failed", reason="TooManyErrors", message=words)
    running.play("Failed", "FAILED", reason="AppFailed", message="exit code 3", endTime=stamp())
    status = running.status("Failed", "TooManyErrors")
    assert conditions(status) == {
        **{"Ready": "False", "Complete": "False", "Failed": "True", "Suspended": "False"},
        **{"Stalled": "True"},
    }
    assert messages(status) == {words}


ENDS = {
    "Job entrypoint command failed with exit code 1": ("Failed", "FAILED", "AppFailed"),
    "Job was stopped": ("Failed", "STOPPED", "AppFailed"),
    "The RayJob has passed the activeDeadlineSeconds": ("Failed", "", "DeadlineExceeded"),
    "failed to submit: connection refused": ("Failed", "", "SubmissionFailed"),
    "the RayJob name should be shorter": ("ValidationFailed", "", "ValidationFailed"),
}
CAUSES = {"AppFailed": "Application", "ValidationFailed": "InvalidSpec"}


@pytest.mark.parametrize("words", ENDS)
def test_failure_without_report_has_the_message_of_kuberay(
    operator_of_all: OperatorProcess, job: Any, words: str
) -> None:
    deployment, state, reason = ENDS[words]
    failed = job(retry={"maxAttempts": 1})
    failed.play_end(state, deployment, reason=reason, message=words)
    status = failed.status("Failed", CAUSES.get(reason, reason))
    assert messages(status) == {words}
    assert status["completionTime"] >= status["startTime"], "an end before the start is not used"


def test_success_without_report_names_the_report_file(
    operator_of_all: OperatorProcess, job: Any
) -> None:
    played = job()
    played.play_end("SUCCEEDED")
    played.status("Succeeded", words=f"{OUTPUT}_batchinference/report.json")
    played.condition("Complete")


def test_late_report_is_used(operator_of_all: OperatorProcess, job: Any) -> None:
    """The head does not answer for a moment, just when the job has ended."""
    played = job()
    played.play("Complete", "SUCCEEDED", endTime=stamp())
    played.status("Finalizing")
    played.play_cluster()
    counts = {"read": 3, "written": 3, "failed": 0, "skipped": 0}
    played.report("succeeded", counts=counts)
    played.play("Complete", "SUCCEEDED", endTime=stamp())
    assert played.status("Succeeded")["counts"] == counts


def test_unreadable_report_does_not_block_success(
    operator_of_all: OperatorProcess, job: Any
) -> None:
    played = job()
    played.play_cluster()
    played.dashboard.tokens[played.host] = "another"
    played.play_end("SUCCEEDED")
    played.status("Succeeded", words="could not be read")


def test_restarted_driver_does_not_reset_progress(running: PlayedJob) -> None:
    running.report("preparing", progress={"rows": 0})
    running.status("Starting")
    assert running.body["status"]["progress"]["rows"] == 410


PODS = {
    "no node has room": (
        {
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                }
            ]
        },
        "Unschedulable",
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu",
    ),
    "the image is not there": (
        {
            "containerStatuses": [
                {
                    **{"name": "ray-worker", "ready": False, "restartCount": 0},
                    **{"image": "pipeline", "imageID": ""},
                    "state": {
                        "waiting": {
                            "reason": "ImagePullBackOff",
                            "message": 'Back-off pulling image "pipeline"',
                        }
                    },
                }
            ]
        },
        "ImagePull",
        "Back-off pulling image",
    ),
}


@pytest.mark.parametrize(("status", "reason", "words"), PODS.values(), ids=PODS)
def test_stuck_pod_is_shown_in_the_status(
    operator_of_all: OperatorProcess,
    namespace: Namespace,
    job: Any,
    status: Object,
    reason: str,
    words: str,
) -> None:
    played = job()
    played.status("Starting")
    pod = played.play_pod(status)
    played.status("Pending", reason, words=f"pod {pod}: {words}")
    namespace.server.call("DELETE", namespace.path("Pod", pod), gracePeriodSeconds="0")
    played.status("Starting")


def test_deleted_ray_job_fails_the_job(running: PlayedJob, namespace: Namespace) -> None:
    namespace.delete("RayJob", "job-1")
    failed = running.condition("Failed")
    assert failed["reason"] == "RayJobDeleted"
    assert "job-1" in failed["message"]
    assert namespace.list("RayJob") == []


def test_concurrent_jobs_are_isolated(
    operator_of_all: OperatorProcess, server: ApiServer, dashboard: Dashboard, job: Any
) -> None:
    """Jobs with two names in one namespace, and with one name in two namespaces."""
    other = new_namespace(server, f"other-{uuid.uuid4().hex[:8]}")
    other.create(document("one"))
    jobs = [job("one"), job("two"), PlayedJob(other, "one", dashboard)]
    for played in jobs:
        played.play_cluster()
        played.play_driver()
    assert len({played.dashboard.tokens[played.host] for played in jobs}) == 3
    for rows, played in enumerate(jobs):
        counts = {"read": rows, "written": rows, "failed": 0, "skipped": 0}
        played.report("succeeded" if rows else "failed", reason="BadInput", counts=counts)
    assert jobs[0].status("Failed", "BadInput")["counts"]["read"] == 0
    assert jobs[1].status("Succeeded")["counts"]["read"] == 1
    assert jobs[2].status("Succeeded")["counts"]["read"] == 2


def test_twenty_concurrent_jobs_all_succeed(operator_of_all: OperatorProcess, job: Any) -> None:
    jobs = [job(f"job-{number}") for number in range(20)]
    for played in jobs:
        played.play_success()
    for played in jobs:
        assert played.status("Succeeded")["counts"]["written"] == 10


def test_foreign_status_is_overwritten(running: PlayedJob, namespace: Namespace) -> None:
    namespace.patch_status("BatchInference", "job", {"phase": "Pending"})
    running.status("Running")


def test_finished_job_is_not_patched_again(running: PlayedJob) -> None:
    """Each write comes back as a watch event, so an unchanged job must not be written."""
    running.play_success()
    running.status("Succeeded")
    assert running.released()
    before = running.body["metadata"]["resourceVersion"]
    running.namespace.patch("RayJob", "job-1", {"metadata": {"labels": {"seen": "again"}}})
    other = PlayedJob(running.namespace, "other", running.dashboard)
    running.namespace.create(document("other"))
    other.status("Starting")  # by now the operator has handled all earlier events
    assert running.body["metadata"]["resourceVersion"] == before
