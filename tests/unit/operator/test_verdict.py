"""What is said about a job for each thing that may be seen of it."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec.phases import Phase
from batchinference.spec.report import JobState, Report
from batchinference.spec.status import Counts
from batchinference_operator.status.conditions import Verdict
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.pods import PodView
from batchinference_operator.status.verdict import judge
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
STUCK = PodView.of(pod_body("job-1-worker", **waiting("ImagePullBackOff", "no such image")))
WELL = PodView.of(pod_body("job-1-head"))
QUIET = PodView.of(pod_body("job-1-worker", **waiting("ContainerCreating")))
COUNTS = Counts(read=10, written=9, failed=1, skipped=0)


def seen(**status: Any) -> RayJobView:
    return RayJobView.of(ray_job_body(**status))


def judged(
    ray_job: RayJobView | None,
    *pods: PodView,
    report: Report | None = None,
    before: str = "",
    words: dict[str, str] | None = None,
) -> tuple[Phase, Verdict]:
    return judge(ray_job, pods, report, OUTPUT, before, words or {})


# --- the driver's last word -------------------------------------------------------------


def test_a_job_has_succeeded_when_its_driver_says_so() -> None:
    phase, verdict = judged(seen(**SUCCEEDED), report=report(JobState.SUCCEEDED, counts=COUNTS))
    assert phase == Phase.SUCCEEDED
    expected = Verdict("Succeeded", "9 rows written to s3://out/result/", complete=True)
    assert verdict == expected


def test_the_drivers_own_message_about_a_success_is_passed_on() -> None:
    last = report(JobState.SUCCEEDED, message="the output was complete already")
    assert judged(seen(**SUCCEEDED), report=last)[1].message == "the output was complete already"


def test_a_success_without_counts_has_written_nothing() -> None:
    _, verdict = judged(seen(**SUCCEEDED), report=report(JobState.SUCCEEDED))
    assert verdict.message == "0 rows written to s3://out/result/"


@pytest.mark.parametrize(
    ("words", "message"), [("3 % of the rows failed",) * 2, (None, "the driver failed")]
)
def test_a_job_has_failed_when_its_driver_says_so(words: str | None, message: str) -> None:
    phase, verdict = judged(seen(**FAILED), report=report(JobState.FAILED, message=words))
    assert (phase, verdict.failed, verdict.message) == (Phase.FAILED, True, message)


@pytest.mark.parametrize(
    "ray_job",
    [
        None,
        seen(**RUNNING),
        seen(jobStatus="FAILED", jobDeploymentStatus="Failed", reason="DeadlineExceeded"),
        seen(jobDeploymentStatus="Suspended"),
    ],
    ids=["gone", "still-running", "failed", "suspended"],
)
def test_final_report_wins_over_the_state_of_the_cluster(
    ray_job: RayJobView | None,
) -> None:
    last = report(JobState.SUCCEEDED, counts=COUNTS)
    phase, verdict = judged(ray_job, STUCK, report=last, before="Running")
    assert (phase, verdict.complete, verdict.failed) == (Phase.SUCCEEDED, True, False)


# --- an end without the driver's last word ----------------------------------------------


@pytest.mark.parametrize(
    "silent", [None, report(JobState.FINALIZING)], ids=["no-report", "an-old-report"]
)
def test_success_without_the_last_report_says_where_to_find_it(silent: Report | None) -> None:
    phase, verdict = judged(seen(**SUCCEEDED), report=silent)
    assert phase == Phase.SUCCEEDED
    assert verdict.complete
    assert "output written to s3://out/result/" in verdict.message
    assert "s3://out/result/_batchinference/report.json" in verdict.message


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (FAILED, "Traceback ..."),
        ({**FAILED, "message": None}, "RayJob job-1 ended as Failed"),
        ({"jobDeploymentStatus": "ValidationFailed", "message": "bad spec"}, "bad spec"),
        (
            {"jobStatus": "STOPPED", "jobDeploymentStatus": "Complete"},
            "RayJob job-1 ended as Stopped",
        ),
    ],
    ids=["application", "no-words", "invalid", "stopped"],
)
def test_failure_without_the_last_report_is_told_in_kuberays_words(
    status: dict[str, Any], message: str
) -> None:
    phase, verdict = judged(seen(**status), STUCK)
    assert (phase, verdict.failed, verdict.message) == (Phase.FAILED, True, message)


# --- under way --------------------------------------------------------------------------


def test_a_job_without_a_ray_job_is_pending() -> None:
    phase, verdict = judged(None)
    assert (phase, verdict.reason) == (Phase.PENDING, "Pending")
    assert not verdict.complete
    assert not verdict.failed


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"jobDeploymentStatus": "Initializing"},
        {"jobStatus": "PENDING", "jobDeploymentStatus": "Running"},
    ],
    ids=["new", "initializing", "pending"],
)
def test_a_job_whose_driver_has_not_started_is_starting(status: dict[str, Any]) -> None:
    expected = Verdict("Starting", "RayJob job-1 is starting its cluster")
    assert judged(seen(**status), WELL) == (Phase.STARTING, expected)


@pytest.mark.parametrize("state", ["Suspending", "Suspended"])
def test_suspended_ray_job_waits_for_admission(state: str) -> None:
    phase, verdict = judged(seen(jobDeploymentStatus=state, jobStatus="RUNNING"))
    assert (phase, verdict.reason) == (Phase.PENDING, "Queued")


@pytest.mark.parametrize(
    ("told", "phase", "reason", "words"),
    [
        (None, Phase.STARTING, "Starting", "first report"),
        (report(JobState.PREPARING), Phase.STARTING, "Starting", "preparing"),
        (report(JobState.RUNNING), Phase.RUNNING, "Running", "processed"),
        (report(JobState.RUNNING, rows=5), Phase.RUNNING, "Running", "processed"),
        (report(JobState.FINALIZING, rows=9), Phase.FINALIZING, "Finalizing", "checking"),
    ],
    ids=["nothing", "preparing", "no-rows-yet", "rows", "finalizing"],
)
def test_a_started_job_is_where_its_driver_is(
    told: Report | None, phase: Phase, reason: str, words: str
) -> None:
    found, verdict = judged(seen(**RUNNING), WELL, report=told)
    assert (found, verdict.reason) == (phase, reason)
    assert words in verdict.message
    assert not verdict.complete
    assert not verdict.failed


@pytest.mark.parametrize("before", [Phase.RUNNING, Phase.FINALIZING])
def test_a_driver_that_falls_silent_does_not_set_the_job_back(before: Phase) -> None:
    phase, verdict = judged(seen(**RUNNING), before=before.value)
    assert (phase, verdict.reason) == (before, "DriverSilent")


@pytest.mark.parametrize("before", ["", "Pending", "Starting", "Unheard"])
def test_a_driver_that_was_never_heard_is_starting(before: str) -> None:
    assert judged(seen(**RUNNING), before=before)[0] == Phase.STARTING


def test_a_driver_that_begins_anew_is_starting_again() -> None:
    told = report(JobState.PREPARING)
    assert judged(seen(**RUNNING), report=told, before="Running")[0] == Phase.STARTING


# --- a pod in trouble -------------------------------------------------------------------

EXPECTED = Verdict("ImagePull", "pod job-1-worker: no such image")


@pytest.mark.parametrize(
    ("status", "told", "before", "phase"),
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
    ids=[
        "cluster-starting",
        "driver-never-heard",
        "preparing",
        "preparing-anew",
        "no-progress",
        "no-rows",
        "rows",
        "finalizing",
        "finalizing-nothing",
        "silent-while-running",
        "silent-while-finalizing",
    ],
)
def test_pod_trouble_is_named_before_the_driver_starts(
    status: dict[str, Any], told: Report | None, before: str, phase: Phase
) -> None:
    assert judged(seen(**status), STUCK, report=told, before=before) == (phase, EXPECTED)


def test_the_first_pod_in_trouble_is_named() -> None:
    other = PodView.of(pod_body("job-1-zzz", **waiting("CrashLoopBackOff", "again")))
    assert judged(seen(rayClusterStatus=HEAD), WELL, STUCK, other)[1] == EXPECTED


def test_warning_event_of_a_pod_is_its_trouble() -> None:
    words = {"job-1-worker": 'MountVolume.SetUp failed: secret "key" not found'}
    phase, verdict = judged(seen(), QUIET, words=words)
    assert (phase, verdict.reason) == (Phase.PENDING, "ContainerConfig")
    assert verdict.message == f"pod job-1-worker: {words['job-1-worker']}"


def test_events_of_a_pod_that_has_started_are_of_the_past() -> None:
    assert judged(seen(), WELL, words={"job-1-head": "not found"})[0] == Phase.STARTING


# --- a RayJob that is kept from starting ------------------------------------------------


@pytest.mark.parametrize("told", [None, report(JobState.FINALIZING, rows=9)], ids=["new", "later"])
def test_a_ray_job_that_waits_for_kueue_is_queued(told: Report | None) -> None:
    body = ray_job_body(**RUNNING)
    body["spec"]["suspend"] = True
    phase, verdict = judged(RayJobView.of(body), report=told, before="Finalizing")
    assert (phase, verdict.reason) == (Phase.PENDING, "Queued")


def test_cluster_trouble_shows_until_pods_exist() -> None:
    words = {"job-1-xyz": "ServiceAccount nobody is not found"}
    without = seen(rayClusterName="job-1-xyz")
    refused = Verdict("Refused", "ServiceAccount nobody is not found")
    assert judged(without, words=words) == (Phase.PENDING, refused)
    assert judged(without, STUCK, words=words)[1].reason == "ImagePull"


def test_pods_that_the_api_server_refuses_are_named_in_its_words() -> None:
    full = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods=2"}
    cluster = {"rayClusterStatus": {"conditions": [full]}}
    refused = Verdict("Refused", "exceeded quota: pods=2")
    assert judged(seen(**cluster)) == (Phase.PENDING, refused)
    started = seen(jobStatus="RUNNING", **cluster)
    waits, works = report(JobState.RUNNING), report(JobState.RUNNING, rows=5)
    assert judged(started, STUCK, report=waits) == (Phase.PENDING, refused)
    assert judged(started, report=works) == (Phase.RUNNING, refused)
