"""The cause of a failed attempt, derived from all observations of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState, Report, failure_line
from batchinference_operator.status.conditions import MAX_MESSAGE
from batchinference_operator.status.failure_cause import (
    DISRUPTION_SECONDS,
    failure_cause,
    head_ran_out_of_memory,
)
from batchinference_operator.status.pod_problems import Disruption
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import unix_seconds
from plugins.messages import Messages
from support.operator.objects import FAILED, RUNNING, ray_job_body, report

KILLED = Disruption(Cause.OUT_OF_MEMORY, "pod job-1-worker: killed", of_head=False)
EVICTED = Disruption(Cause.NODE_LOST, "pod job-1-head: evicted", of_head=True)


def seen(**status: Any) -> RayJobView:
    return RayJobView.of(ray_job_body(**{**FAILED, **status}))


def failure_report(reason: str | None, message: str | None = "boom") -> Report:
    return report(JobState.FAILED, reason=reason, message=message)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        *((cause.value, cause) for cause in Cause if cause != Cause.NO_CAPACITY),
        ("NoCapacity", Cause.APPLICATION),
        ("SomethingNew", Cause.APPLICATION),
        (None, Cause.APPLICATION),
    ],
)
def test_cause_in_the_report_is_used(reason: str | None, cause: Cause) -> None:
    assert failure_cause(seen(), failure_report(reason), None) == (cause, "boom")
    assert failure_cause(seen(), failure_report(reason, None), None) == (cause, "the driver failed")


def test_running_report_does_not_decide_the_end() -> None:
    assert failure_cause(seen(), report(rows=5), None) == (Cause.APPLICATION, "Traceback ...")


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("AppFailed", Cause.APPLICATION),
        ("SubmissionFailed", Cause.SUBMISSION_FAILED),
        ("JobStatusCheckTimeoutExceeded", Cause.SUBMISSION_FAILED),
        ("JobDeploymentStatusTransitionGracePeriodExceeded", Cause.SUBMISSION_FAILED),
        ("DeadlineExceeded", Cause.DEADLINE_EXCEEDED),
        ("PreRunningDeadlineExceeded", Cause.DEADLINE_EXCEEDED),
        ("ValidationFailed", Cause.INVALID_SPEC),
        ("SomethingNew", Cause.APPLICATION),
        (None, Cause.APPLICATION),
    ],
)
def test_reason_of_kuberay_is_used_without_a_report(reason: str | None, cause: Cause) -> None:
    assert failure_cause(seen(reason=reason), None, None) == (cause, "Traceback ...")


@pytest.mark.parametrize("reason", ["DeadlineExceeded", "PreRunningDeadlineExceeded"])
@pytest.mark.parametrize("disruption", [None, KILLED, EVICTED])
@pytest.mark.parametrize(
    "last_report",
    [None, report(rows=5), failure_report("Interrupted")],
    ids=["silent", "runs", "stopped"],
)
def test_deadline_of_kuberay_is_the_cause(
    reason: str, disruption: Disruption | None, last_report: Report | None
) -> None:
    ended = seen(reason=reason, message="passed")
    assert failure_cause(ended, last_report, disruption) == (Cause.DEADLINE_EXCEEDED, "passed")
    assert (
        failure_cause(seen(reason=reason), failure_report("ModelLoad"), None)[0] == Cause.MODEL_LOAD
    )


def test_deployment_status_is_used_without_reason_or_message() -> None:
    invalid = seen(jobStatus=None, jobDeploymentStatus="ValidationFailed", reason=None)
    assert failure_cause(invalid, None, None)[0] == Cause.INVALID_SPEC
    assert failure_cause(seen(message=None), None, None)[1] == "RayJob job-1 ended as Failed"
    stopped = seen(jobStatus="STOPPED", jobDeploymentStatus="Complete", message=None)
    assert failure_cause(stopped, None, None)[1] == "RayJob job-1 ended as Stopped"


@pytest.mark.parametrize(
    "message", ["Ray head pod not found.", "x: Ray job not found in RayCluster."]
)
def test_lost_head_is_recognized_by_kuberays_message(message: str) -> None:
    assert failure_cause(seen(message=message), None, None) == (Cause.HEAD_LOST, message)


@pytest.mark.parametrize(
    ("code", "cause"),
    [("137", Cause.OUT_OF_MEMORY), ("-9", Cause.OUT_OF_MEMORY), ("1", Cause.APPLICATION),
     ("1370", Cause.APPLICATION)],
)  # fmt: skip
def test_killed_driver_is_recognized_by_its_exit_code(
    code: str, cause: Cause, messages: Messages
) -> None:
    exited = f"Job entrypoint command failed with exit code {code}"
    result = failure_cause(
        seen(message=f"{exited}, last available logs: ..."), report(rows=5), None
    )
    assert result[0] == cause
    messages.check(result[1])


def test_driver_that_the_memory_monitor_of_ray_kills_ran_out_of_memory() -> None:
    message = (
        "Unexpected error occurred: 2 worker(s) were killed due to the node running low on memory. "
        "Memory on the node (IP: 10.0.0.8) was 0.95GB used / 1.00GB limit"
    )
    assert failure_cause(seen(message=message), None, None)[0] == Cause.OUT_OF_MEMORY
    assert head_ran_out_of_memory(seen(message=message), ())


@pytest.mark.parametrize(
    "last_report",
    [
        None,
        failure_report("Application"),
        failure_report("Interrupted"),
        failure_report("NodeLost"),
    ],
    ids=["silent", "error", "stopped", "lost node"],
)
def test_pod_loss_explains_an_unspecific_failure(last_report: Report | None) -> None:
    cause = failure_cause(seen(), last_report, KILLED)
    assert cause == (Cause.OUT_OF_MEMORY, "pod job-1-worker: killed")


@pytest.mark.parametrize(
    ("before", "cause"),
    [(0, Cause.OUT_OF_MEMORY), (DISRUPTION_SECONDS - 1, Cause.OUT_OF_MEMORY),
     (DISRUPTION_SECONDS, Cause.APPLICATION)],
    ids=["same-time", "shortly-before", "long-before"],
)  # fmt: skip
def test_pod_loss_shortly_before_the_end_is_the_cause(before: float, cause: Cause) -> None:
    last_report = failure_report("Application")
    disruption = replace(KILLED, at=unix_seconds(last_report.updated_at) - before)
    assert failure_cause(seen(), last_report, disruption)[0] == cause


def test_missing_end_time_hides_no_loss() -> None:
    """The API server accepts this invalid value as a date-time."""
    ended = seen(endTime="2026-03-01T12:00:00+99:99")
    assert failure_cause(ended, None, KILLED)[0] == Cause.OUT_OF_MEMORY


def test_end_time_of_kuberay_counts_without_a_report() -> None:
    ended = seen()
    disruption = replace(KILLED, at=unix_seconds(ended.ended_at) - DISRUPTION_SECONDS)
    assert failure_cause(ended, None, disruption)[0] == Cause.APPLICATION


def test_specific_cause_of_the_driver_wins_over_any_loss() -> None:
    assert (
        failure_cause(seen(), failure_report("TooManyErrors"), EVICTED)[0] == Cause.TOO_MANY_ERRORS
    )


def test_credentials_in_the_end_of_a_log_are_masked() -> None:
    _, message = failure_cause(seen(message="log:\nPASSWORD=hunter2\n"), None, None)
    assert message == "log: PASSWORD=***"
    log = (
        f"{'x' * (MAX_MESSAGE - 35)} postgresql://admin:hunter2-hunter2-hunter2@db/x {'x' * 20_000}"
    )
    _, message = failure_cause(seen(message=log), None, None)
    assert (len(message), "hunter" in message) == (MAX_MESSAGE, False)


def test_deletion_of_a_running_ray_job_explains_a_stopped_driver() -> None:
    deleted = replace(RayJobView.of(ray_job_body(**RUNNING)), deleted_at="2026-03-01T12:09:00Z")
    cause, _ = failure_cause(deleted, failure_report("Interrupted"), EVICTED)
    assert cause == Cause.RAY_JOB_DELETED


@pytest.mark.parametrize("reason", ["Application", "WorkerCrashed"])
def test_deletion_of_an_ended_ray_job_is_not_the_cause(reason: str) -> None:
    deleted = replace(seen(), deleted_at="2026-03-01T12:11:00Z")
    assert failure_cause(deleted, failure_report(reason), None) == (reason, "boom")


def test_lost_pod_explains_a_crashed_worker() -> None:
    report = failure_report("WorkerCrashed", "a process died")
    assert failure_cause(seen(), report, None) == (Cause.WORKER_CRASHED, "a process died")
    assert failure_cause(seen(), report, KILLED)[0] == Cause.OUT_OF_MEMORY
    assert Cause.WORKER_CRASHED.is_retried


def test_last_line_of_the_driver_log_has_the_cause_of_a_lost_report() -> None:
    line = failure_line("StorageUnavailable", "s3://lake is away\x1b[2J")
    log = f"Job entrypoint command failed with exit code 1, logs:\n{'x' * 9000}\n{line}"
    assert failure_cause(seen(message=log), None, None) == (
        Cause.STORAGE_UNAVAILABLE,
        "s3://lake is away[2J",
    )
    assert failure_cause(seen(message=f"{log}\n"), None, None)[0] == Cause.STORAGE_UNAVAILABLE
    for unknown in ("SomethingNew", "NoCapacity"):
        line = failure_line(unknown, "boom")
        assert failure_cause(seen(message=line), None, None) == (Cause.APPLICATION, "boom")


@pytest.mark.parametrize(
    "text",
    ["{", "{}", "[1]", '{"cause": 1, "message": "x"}', "{" * 9000, '{"a":' * 1600 + "}" * 1600],
)
def test_malformed_last_line_is_ignored(text: str) -> None:
    message = f"batchinference: {text}"
    assert failure_cause(seen(message=message), None, None)[0] == Cause.APPLICATION
