"""Events on a job: each change is posted once, even if the job is reconciled several times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.progress import Counts
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.observed_and_actions import Actions
from batchinference_operator.status.conditions import find_condition
from batchinference_operator.status.job_events import Event, events_between
from batchinference_operator.status.pod_view import PodView
from plugins.messages import Messages
from support.documents.http_models import json_endpoint
from support.documents.minimal import model_step
from support.operator.objects import INITIALIZING, RUNNING, pod_body, waiting
from support.operator.reconcile_loop import ReconcileLoop
from support.tiers import examples

IMAGE = "Back-off pulling image registry/pipeline:1"


class RecordedJob(ReconcileLoop):
    """A job that records its Events."""

    def __init__(self, **spec: object) -> None:
        self.events: list[Event] = []
        super().__init__(**spec)

    def _apply(self, actions: Actions) -> None:
        before = self.status
        super()._apply(actions)
        self.events += events_between(before, self.status)

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    def last_note(self, reason: str) -> str:
        return next(event.note for event in reversed(self.events) if event.reason == reason)


@pytest.fixture
def job() -> RecordedJob:
    return RecordedJob()


def waiting_pods(reason: str = "ImagePullBackOff", message: str = IMAGE) -> tuple[PodView, ...]:
    return (PodView.of(pod_body(**waiting(reason, message))),)


WARNING = {"name": "TextCut", "step": "embed", "count": 3, "amount": 40, "message": "texts"}
COUNTS = Counts(read=100, written=98, failed=2, filtered=0)


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"counts": COUNTS, "output": "s3://out/"},
         "100 rows read: 98 written, 2 failed, 0 filtered; output in s3://out/"),
        ({"counts": COUNTS, "output": "s3://out/", "warnings": [WARNING]},
         "100 rows read: 98 written, 2 failed, 0 filtered; warnings: TextCut (embed) 3 rows "
         "(40 tokens); output in s3://out/"),
        ({"message": "an output was there"}, "an output was there"),
    ],
    ids=["counts", "warnings", "message"],
)  # fmt: skip
def test_successful_job_posts_start_and_end(
    job: RecordedJob, fields: dict[str, Any], note: str
) -> None:
    job.run()
    job.set_report(JobState.SUCCEEDED, **fields)
    job.reconcile()
    assert job.reasons == ["AttemptStarted", "Succeeded"]
    assert job.events[0].note == "attempt 1 starts as RayJob job-1"
    assert job.events[1] == Event("Succeeded", "Finish", note)


def test_progress_and_kuberay_status_post_no_event(job: RecordedJob) -> None:
    job.plan()
    for status in (INITIALIZING, RUNNING):
        job.set_kuberay_status(**status)
        job.reconcile()
    for rows in range(10, 40):
        job.set_report(JobState.RUNNING, rows=rows)
        job.reconcile(seconds=2)
    assert job.reasons == ["AttemptStarted"]


def test_failed_attempt_and_its_retry_post_events() -> None:
    job = RecordedJob(retry={"maxAttempts": 2, "backoff": {"initial": "30s"}})
    job.run()
    job.fail("NodeLost", "node a-1 was drained")
    assert job.reasons == ["AttemptStarted", "AttemptFailed", "Retrying"]
    failed, retrying = job.events[-2:]
    note = "attempt 1 failed: NodeLost: node a-1 was drained"
    assert (failed.type, failed.note) == ("Warning", note)
    note = f"attempt 2 starts at {job.status['nextAttemptTime']}"
    assert (retrying.type, retrying.note) == ("Normal", note)
    job.finalize_deletions()
    for _ in range(4):
        job.reconcile(seconds=20)
        job.finalize_deletions()
    assert job.last_note("AttemptStarted") == "attempt 2 starts as RayJob job-2"


def test_final_failure_posts_one_event(job: RecordedJob) -> None:
    job.run()
    job.fail("BadInput", "s3://in/ is empty")
    assert job.reasons == ["AttemptStarted", "Failed"]
    note = "attempt 1: BadInput: s3://in/ is empty"
    assert job.events[-1] == Event("Failed", "Finish", note, "Warning")


def test_later_changes_of_a_failed_job_post_no_second_failure(job: RecordedJob) -> None:
    job.run()
    job.fail("BadInput", "s3://in/ is empty")
    failed = job.status
    assert events_between(failed, {**failed, "deviceSeconds": 7}) == []


def test_failed_attempt_without_a_cause_posts_its_event(job: RecordedJob) -> None:
    """A user may have written the status. The message of a driver may be empty, too."""
    job.run()
    ended = {**job.attempt, "outcome": "Failed"}
    for fields, note in (({}, "attempt 1 failed"), ({"cause": "X"}, "attempt 1 failed: X")):
        after = {**job.status, "attempts": [{**ended, **fields}]}
        (event,) = events_between(job.status, after)
        assert (event.reason, event.note) == ("AttemptFailed", note)


def test_invalid_job_posts_one_event() -> None:
    job = RecordedJob(steps=[{"name": "odd"}])
    job.reconcile()
    assert job.reasons == ["Failed"]
    assert job.events[0].note.startswith("InvalidSpec: ")


def test_secret_in_a_request_is_reported_and_not_shown(
    caplog: pytest.LogCaptureFixture, messages: Messages
) -> None:
    """The API server has stored it: it has no rules for objects with values of any type."""
    caplog.set_level("DEBUG")
    body = {"text": "{value}", "api_key": "hunter2"}
    job = RecordedJob(steps=[model_step(model={**json_endpoint(), "body": body})])
    job.reconcile()
    (event,) = job.events
    messages.check(event.note)
    assert find_condition(job.status, "Failed")["message"] in event.note
    assert "hunter2" not in f"{job.status} {event} {caplog.text}"


def test_suspension_and_resumption_post_events(job: RecordedJob) -> None:
    job.run()
    for suspend in (True, False):
        job.spec["suspend"] = suspend
        for _ in range(4):
            job.reconcile(seconds=5)
            job.finalize_deletions()
    assert job.reasons == ["AttemptStarted", "Suspended", "Resumed", "AttemptStarted"]


def test_pod_problem_posts_an_event_each_time_it_starts(job: RecordedJob) -> None:
    job.start()
    job.pods = waiting_pods()
    job.reconcile()
    job.pods = waiting_pods("ErrImagePull", "not found")
    for _ in range(5):
        job.reconcile(seconds=30)
    assert job.reasons == ["AttemptStarted", "ImagePull"]
    assert job.events[-1] == Event("ImagePull", "Wait", f"pod job-1-head: {IMAGE}", "Warning")
    for pods in ((), waiting_pods()):
        job.pods = pods
        job.reconcile()
    assert job.reasons.count("ImagePull") == 2


def test_waiting_for_kueue_posts_a_normal_event(job: RecordedJob) -> None:
    job.plan()
    job.ray_job["spec"]["suspend"] = True
    job.reconcile()
    assert (job.events[-1].reason, job.events[-1].type) == ("Queued", "Normal")


STEPS = st.sampled_from(
    ["look", "waiting_pods", "healed", "rows", "fail", "suspend", "resume", "gone"]
)


@given(steps=st.lists(STEPS, max_size=30))
@settings(max_examples=examples(100), deadline=None)
def test_each_attempt_posts_each_event_once(steps: list[str]) -> None:
    job = RecordedJob(retry={"maxAttempts": 10, "backoff": {"initial": "0s"}})
    for step in steps:
        perform(job, step)
        job.reconcile(seconds=1)
        assert events_between(job.status, job.status) == []
        posted = [(event.reason, event.note) for event in job.events]
        of_attempts = [each for each in posted if "attempt " in each[1]]
        assert len(set(of_attempts)) == len(of_attempts), "each attempt starts and ends once"
        assert all(event.note and len(event.reason) <= 128 for event in job.events)


def perform(job: RecordedJob, step: str) -> None:
    if step in ("suspend", "resume"):
        job.spec["suspend"] = step == "suspend"
    elif step in ("waiting_pods", "healed"):
        job.pods = waiting_pods() if step == "waiting_pods" else ()
    elif step == "gone":
        job.finalize_deletions()
        job.report = None
    elif job.ray_jobs.get(job.status.get("rayJobName", "")):
        job.set_kuberay_status(**RUNNING)
        if step == "rows":
            job.set_report(JobState.RUNNING, rows=5)
        elif step == "fail":
            job.set_report(JobState.FAILED, reason="NodeLost", message="boom")
