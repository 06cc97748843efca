"""The phase and the condition of a job, for all possible observations of it."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering import QUEUE_LABEL
from batchinference.spec.progress import Counts
from batchinference.spec.report import JobState, Report
from batchinference.spec.status import Phase
from batchinference_operator.status.conditions import Summary
from batchinference_operator.status.phase import DRIVER, derive_phase
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import RayJobView
from support.operator.objects import (
    FAILED,
    HEAD,
    RUNNING,
    SUCCEEDED,
    pod_body,
    ray_job_body,
    report,
    waiting,
)

OUTPUT = "s3://out/result/"
TROUBLED = PodView.of(pod_body("job-1-worker", **waiting("ImagePullBackOff", "no such image")))
HEALTHY = PodView.of(pod_body("job-1-head"))
CREATING = PodView.of(pod_body("job-1-worker", **waiting("ContainerCreating")))
COUNTS = Counts(read=10, written=9, failed=1, filtered=0)


def seen(**status: Any) -> RayJobView:
    return RayJobView.of(ray_job_body(**status))


def verdict_of(
    ray_job: RayJobView,
    *pods: PodView,
    report: Report | None = None,
    before: str = "",
    messages: dict[str, str] | None = None,
) -> tuple[Phase, Summary]:
    return derive_phase(ray_job, pods, report, OUTPUT, before, messages or {})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"counts": COUNTS}, "9 rows written to s3://out/result/"),
        ({"message": "the output was complete already"}, "the output was complete already"),
        ({}, "0 rows written to s3://out/result/"),
    ],
    ids=["counts", "message", "neither"],
)
def test_success_report_gives_the_message(fields: dict[str, Any], message: str) -> None:
    last = report(JobState.SUCCEEDED, **fields)
    expected = Phase.SUCCEEDED, Summary("Succeeded", message, complete=True)
    assert verdict_of(seen(**SUCCEEDED), report=last) == expected


@pytest.mark.parametrize(
    "ray_job",
    [
        seen(**RUNNING),
        seen(jobStatus="FAILED", jobDeploymentStatus="Failed", reason="DeadlineExceeded"),
        seen(jobDeploymentStatus="Suspended"),
    ],
    ids=["running", "failed", "suspended"],
)
def test_final_report_wins_over_kuberay(ray_job: RayJobView) -> None:
    last = report(JobState.SUCCEEDED, counts=COUNTS)
    phase, summary = verdict_of(ray_job, TROUBLED, report=last, before="Running")
    assert (phase, summary.complete, summary.failed) == (Phase.SUCCEEDED, True, False)


@pytest.mark.parametrize(
    "silent", [None, report(JobState.FINALIZING)], ids=["no-report", "old-report"]
)
def test_success_without_final_report_names_its_path(silent: Report | None) -> None:
    phase, summary = verdict_of(seen(**SUCCEEDED), report=silent)
    assert phase == Phase.SUCCEEDED
    assert summary.complete
    assert "output written to s3://out/result/" in summary.message
    assert "s3://out/result/_batchinference/report.json" in summary.message


@pytest.mark.parametrize(
    "status",
    [
        FAILED,
        {"jobDeploymentStatus": "ValidationFailed", "message": "bad spec"},
        {"jobStatus": "STOPPED", "jobDeploymentStatus": "Complete"},
    ],
    ids=["application", "invalid", "stopped"],
)
def test_failed_ray_job_without_report_fails_the_attempt(status: dict[str, Any]) -> None:
    phase, summary = verdict_of(seen(**status), TROUBLED)
    assert (phase, summary.failed) == (Phase.FAILED, True)


@pytest.mark.parametrize("status", ["Suspending", "Suspended"])
def test_suspended_ray_job_is_pending(status: str) -> None:
    phase, summary = verdict_of(seen(jobDeploymentStatus=status, jobStatus="RUNNING"))
    assert (phase, summary.reason) == (Phase.PENDING, "Queued")
    assert not summary.complete
    assert not summary.failed


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"jobDeploymentStatus": "Initializing"},
        {"jobStatus": "PENDING", "jobDeploymentStatus": "Running"},
    ],
    ids=["new", "initializing", "pending"],
)
def test_job_is_starting_until_its_driver_starts(status: dict[str, Any]) -> None:
    expected = Summary("Starting", "RayJob job-1 is starting its cluster")
    assert verdict_of(seen(**status), HEALTHY) == (Phase.STARTING, expected)


@pytest.mark.parametrize(
    ("last_report", "phase", "reason", "message"),
    [
        (None, Phase.STARTING, "Starting", "first report"),
        (report(JobState.PREPARING), Phase.STARTING, "Starting", "preparing"),
        (report(JobState.RUNNING), Phase.RUNNING, "Running", "processed"),
        (report(JobState.RUNNING, rows=5), Phase.RUNNING, "Running", "processed"),
        (report(JobState.FINALIZING, rows=9), Phase.FINALIZING, "Finalizing", "checking"),
    ],
    ids=["nothing", "preparing", "no-rows-yet", "rows", "finalizing"],
)
def test_phase_of_a_started_job_is_that_of_its_driver(
    last_report: Report | None, phase: Phase, reason: str, message: str
) -> None:
    verdict, summary = verdict_of(seen(**RUNNING), HEALTHY, report=last_report)
    assert (verdict, summary.reason) == (phase, reason)
    assert message in summary.message
    assert not summary.complete
    assert not summary.failed


@pytest.mark.parametrize("before", [Phase.RUNNING, Phase.FINALIZING])
def test_unreachable_driver_does_not_change_the_phase(before: Phase) -> None:
    phase, summary = verdict_of(seen(**RUNNING), before=before.value)
    assert (phase, summary.reason) == (before, "DriverSilent")


@pytest.mark.parametrize(
    ("last_report", "before"),
    [*((None, before) for before in ("", "Pending", "Starting", "Unheard")),
     (report(JobState.PREPARING), "Running")],
)  # fmt: skip
def test_driver_without_progress_is_starting(last_report: Report | None, before: str) -> None:
    assert verdict_of(seen(**RUNNING), report=last_report, before=before)[0] == Phase.STARTING


IMAGE_PULL = Summary("ImagePull", "pod job-1-worker: no such image")


@pytest.mark.parametrize(
    ("status", "last_report", "before", "phase"),
    [
        ({}, None, "", Phase.PENDING),
        ({"jobStatus": "RUNNING"}, None, "", Phase.PENDING),
        (RUNNING, report(JobState.PREPARING), "", Phase.PENDING),
        (RUNNING, report(JobState.PREPARING), "Running", Phase.PENDING),
        (RUNNING, report(JobState.RUNNING), "Running", Phase.PENDING),
        (RUNNING, report(JobState.RUNNING, rows=0), "Running", Phase.PENDING),
        (RUNNING, report(JobState.RUNNING, rows=1), "Pending", Phase.RUNNING),
        (RUNNING, report(JobState.FINALIZING, rows=1), "Running", Phase.FINALIZING),
        (RUNNING, report(JobState.FINALIZING), "Running", Phase.FINALIZING),
        (RUNNING, None, "Running", Phase.RUNNING),
        (RUNNING, None, "Finalizing", Phase.FINALIZING),
    ],
)
def test_pod_problem_is_named_before_the_driver_starts(
    status: dict[str, Any], last_report: Report | None, before: str, phase: Phase
) -> None:
    assert verdict_of(seen(**status), TROUBLED, report=last_report, before=before) == (
        phase,
        IMAGE_PULL,
    )


def test_first_pod_with_a_problem_is_named() -> None:
    other = PodView.of(pod_body("job-1-zzz", **waiting("CrashLoopBackOff", "again")))
    assert verdict_of(seen(rayClusterStatus=HEAD), HEALTHY, TROUBLED, other)[1] == IMAGE_PULL


def test_warning_event_of_a_pod_is_its_problem() -> None:
    event = 'MountVolume.SetUp failed: secret "key" not found'
    phase, summary = verdict_of(seen(), CREATING, messages={"job-1-worker": event})
    assert (phase, summary.reason) == (Phase.PENDING, "ContainerConfig")
    assert summary.message == f"pod job-1-worker: {event}"


def test_events_of_a_started_pod_are_ignored() -> None:
    assert verdict_of(seen(), HEALTHY, messages={"job-1-head": "not found"})[0] == Phase.STARTING


@pytest.mark.parametrize(
    "last_report", [None, report(JobState.FINALIZING, rows=9)], ids=["new", "later"]
)
def test_ray_job_that_kueue_suspends_is_queued(last_report: Report | None) -> None:
    body = ray_job_body(**RUNNING)
    body["spec"]["suspend"] = True
    phase, summary = verdict_of(RayJobView.of(body), report=last_report, before="Finalizing")
    assert (phase, summary.reason) == (Phase.PENDING, "Queued")


@pytest.mark.parametrize(("queue", "hint"), [("", True), ("gpu", False)])
def test_job_that_kueue_holds_without_a_queue_is_told_how_to_continue(
    queue: str, hint: bool
) -> None:
    body = ray_job_body()
    body["spec"]["suspend"] = True
    body["metadata"]["labels"][QUEUE_LABEL] = queue
    _, summary = verdict_of(RayJobView.of(body))
    assert ("Set spec.cluster.queueName to a LocalQueue" in summary.message) is hint


def test_messages_of_kueue_and_of_the_driver_are_not_mixed() -> None:
    gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    gated = PodView.of(pod_body("job-1-worker", conditions=[gate]))
    messages = {"job-1": "insufficient quota", DRIVER: "it does not answer"}
    _, queued = verdict_of(seen(**RUNNING), gated, messages=messages)
    _, silent = verdict_of(seen(**RUNNING), messages=messages)
    assert (queued.reason, silent.reason) == ("Queued", "DriverSilent")
    assert queued.message.endswith("insufficient quota")
    assert silent.message.endswith("it does not answer")


def test_cluster_problem_is_shown_until_pods_exist() -> None:
    events = {"job-1-xyz": "ServiceAccount nobody is not found"}
    without = seen(rayClusterName="job-1-xyz")
    refused = Summary("Refused", "ServiceAccount nobody is not found")
    assert verdict_of(without, messages=events) == (Phase.PENDING, refused)
    assert verdict_of(without, TROUBLED, messages=events)[1].reason == "ImagePull"


def test_refusal_of_pods_is_passed_on() -> None:
    full = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods=2"}
    cluster = {"rayClusterStatus": {"conditions": [full]}}
    refused = Summary("Refused", "exceeded quota: pods=2")
    assert verdict_of(seen(**cluster)) == (Phase.PENDING, refused)
    started = seen(jobStatus="RUNNING", **cluster)
    waits, works = report(JobState.RUNNING), report(JobState.RUNNING, rows=5)
    assert verdict_of(started, TROUBLED, report=waits) == (Phase.PENDING, refused)
    assert verdict_of(started, report=works) == (Phase.RUNNING, refused)


def test_node_problem_is_not_reported_as_a_missing_secret() -> None:
    pod = PodView.of(pod_body(**waiting("ContainerCreating")))
    messages = {pod.name: "FailedCreatePodSandBox: failed to setup network for sandbox"}
    _, summary = verdict_of(seen(jobDeploymentStatus="Initializing"), pod, messages=messages)
    assert summary.reason == "NodeLost"
    assert summary.message.endswith(messages[pod.name])
