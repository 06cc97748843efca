"""Several attempts of a job, and suspension."""

from __future__ import annotations

from typing import Any

from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import PlayedJob, soon
from support.servers.api_server import Namespace

Object = dict[str, Any]
AT_ONCE = {"backoff": {"initial": "0s"}}


def begun(job: Any, **spec: Any) -> PlayedJob:
    """Return a job whose driver runs and has reported progress."""
    played: PlayedJob = job(**spec)
    played.play_cluster()
    played.play_driver()
    played.report("running", progress={"rows": 410, "total": 1000, "percent": 41})
    played.status("Running")
    return played


def test_retryable_failure_creates_another_ray_job(
    operator_of_all: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    played = begun(job, retry=AT_ONCE)
    played.report("failed", reason="Incomplete", message="2 of 4 files are missing")
    played.attempt = 2
    played.play_success()
    status = played.status("Succeeded")
    first, second = status["attempts"]
    assert (first["outcome"], first["cause"]) == ("Failed", "Incomplete")
    assert first["message"] == "2 of 4 files are missing"
    assert (second["outcome"], second["rayJobName"]) == ("Succeeded", "job-2")
    assert status["failedAttempts"] == 1


def test_changed_deadline_reaches_the_ray_job(
    operator_of_all: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    played = begun(job, deadlines={"active": "1h", "pending": "1h"})
    assert deadlines_of(played) == (7200, 7200)
    namespace.patch("BatchInference", "job", {"spec": {"deadlines": {"active": "2h"}}})
    soon("a later end", lambda: deadlines_of(played) == (10_800, 7200))
    namespace.patch("BatchInference", "job", {"spec": {"deadlines": None}})
    soon("no end", lambda: deadlines_of(played) == (None, None))
    assert played.body["status"]["phase"] == "Running"


def deadlines_of(played: PlayedJob) -> tuple[int | None, int | None]:
    """Return the active and the pending deadline of the job's RayJob, in seconds."""
    spec = played.ray_job["spec"]
    return spec.get("activeDeadlineSeconds"), spec.get("preRunningDeadlineSeconds")


def test_resume_after_suspension_creates_a_new_ray_job(
    operator_of_all: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    played = begun(job)
    played.suspend(True)
    played.status("Suspending")
    played.play("Running", "STOPPED")
    status = played.status("Suspended")
    assert namespace.list("RayJob") == []
    assert status["observedGeneration"] == 2
    played.suspend(False)
    played.attempt = 2
    played.play_success()
    status = played.status("Succeeded")
    assert [attempt["outcome"] for attempt in status["attempts"]] == ["Suspended", "Succeeded"]
    assert status["progress"]["rows"] == 410


def test_change_of_finished_job_is_observed(
    operator_of_all: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    """Tools that wait for a job consider it in progress until the change is observed."""
    finished = job()
    finished.play_success()
    finished.status("Succeeded")
    namespace.patch("BatchInference", "job", {"spec": {"ttl": {"rayJob": "1s"}}})
    soon("it is observed", lambda: finished.body["status"]["observedGeneration"] == 2)
    soon("the RayJob is gone", lambda: namespace.find("RayJob", "job-1") is None)
    assert finished.body["status"]["phase"] == "Succeeded"
