"""From what is seen of an attempt that has ended to the one word for why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState, Report
from batchinference_operator.status.causes import LOSS_SECONDS, cause_of
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.pods import Loss, seconds_of
from support.operator.objects import FAILED, ray_job_body, report

KILLED = Loss(Cause.OUT_OF_MEMORY, "pod job-1-worker: killed", of_head=False)
EVICTED = Loss(Cause.NODE_LOST, "pod job-1-head: evicted", of_head=True)


def seen(**status: Any) -> RayJobView:
    return RayJobView.of(ray_job_body(**{**FAILED, **status}))


def said(reason: str | None, message: str | None = "in its words") -> Report:
    return report(JobState.FAILED, reason=reason, message=message)


@pytest.mark.parametrize("cause", list(Cause))
def test_a_cause_that_the_driver_names_is_the_cause(cause: Cause) -> None:
    assert cause_of(seen(), said(cause.value), ()) == (cause, "in its words")


@pytest.mark.parametrize("reason", ["SomethingNew", None])
def test_unknown_cause_of_the_driver_is_application(reason: str | None) -> None:
    assert cause_of(seen(), said(reason), ()) == (Cause.APPLICATION, "in its words")


def test_a_driver_without_words_has_failed() -> None:
    assert cause_of(seen(), said("BadInput", None), ()) == (Cause.BAD_INPUT, "the driver failed")


def test_running_report_does_not_decide_the_end() -> None:
    assert cause_of(seen(), report(rows=5), ()) == (Cause.APPLICATION, "Traceback ...")


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
def test_without_the_drivers_word_kuberays_reason_counts(reason: str | None, cause: Cause) -> None:
    assert cause_of(seen(reason=reason), None, ()) == (cause, "Traceback ...")


def test_a_ray_job_that_kuberay_finds_invalid_need_give_no_reason() -> None:
    invalid = seen(jobStatus=None, jobDeploymentStatus="ValidationFailed", reason=None)
    assert cause_of(invalid, None, ())[0] == Cause.INVALID_SPEC


@pytest.mark.parametrize(
    "message", ["Ray head pod not found.", "x: Ray job not found in RayCluster."]
)
def test_a_head_that_is_gone_is_known_by_kuberays_words(message: str) -> None:
    assert cause_of(seen(message=message), None, ()) == (Cause.HEAD_LOST, message)


@pytest.mark.parametrize(
    ("code", "cause"),
    [("137", Cause.HEAD_LOST), ("-9", Cause.HEAD_LOST), ("1", Cause.APPLICATION),
     ("1370", Cause.APPLICATION)],
)  # fmt: skip
def test_a_driver_that_was_killed_is_known_by_its_exit_code(code: str, cause: Cause) -> None:
    words = f"Job entrypoint command failed with exit code {code}"
    found = cause_of(seen(message=f"{words}, last available logs: ..."), report(rows=5), ())
    assert found[0] == cause
    assert words in found[1]


def test_without_any_words_the_ray_jobs_outcome_is_told() -> None:
    assert cause_of(seen(message=None), None, ())[1] == "RayJob job-1 ended as Failed"


@pytest.mark.parametrize(
    "told", [None, said("Application"), said("Interrupted")], ids=["silent", "error", "stopped"]
)
def test_what_befell_the_pods_explains_what_the_driver_could_not(told: Report | None) -> None:
    assert cause_of(seen(), told, (KILLED,)) == (Cause.OUT_OF_MEMORY, "pod job-1-worker: killed")


@pytest.mark.parametrize(
    ("before", "cause"),
    [(0, Cause.OUT_OF_MEMORY), (LOSS_SECONDS - 1, Cause.OUT_OF_MEMORY),
     (LOSS_SECONDS, Cause.APPLICATION)],
    ids=["then", "shortly-before", "long-before"],
)  # fmt: skip
def test_a_loss_explains_what_ended_shortly_after_it(before: float, cause: Cause) -> None:
    told = said("Application")
    loss = replace(KILLED, at=seconds_of(told.updated_at) - before)
    assert cause_of(seen(), told, (loss,))[0] == cause


def test_end_by_kuberay_counts_without_a_report() -> None:
    ended = seen()
    loss = replace(KILLED, at=seconds_of(ended.ended_at) - LOSS_SECONDS)
    assert cause_of(ended, None, (loss,))[0] == Cause.APPLICATION


def test_the_loss_of_the_head_counts_first() -> None:
    assert cause_of(seen(), None, (KILLED, EVICTED))[0] == Cause.NODE_LOST


def test_a_cause_that_the_driver_knows_stands_before_any_loss() -> None:
    assert cause_of(seen(), said("TooManyErrors"), (EVICTED,))[0] == Cause.TOO_MANY_ERRORS
