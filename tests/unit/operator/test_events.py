"""What happens to a job is told once, whatever the number of loop."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.report import JobState
from batchinference.spec.status import Counts
from batchinference_operator.reconcile.model import Actions
from batchinference_operator.status.events import Event, events_between
from batchinference_operator.status.pods import PodView
from support.operator.objects import INITIALIZING, RUNNING, pod_body, waiting
from support.operator.reconcile_loop import ReconcileLoop
from support.tiers import examples

IMAGE = "Back-off pulling image registry/pipeline:1"


class Told(ReconcileLoop):
    """A job, and the Events on it."""

    def __init__(self, **spec: object) -> None:
        self.events: list[Event] = []
        super().__init__(**spec)

    def _act(self, actions: Actions) -> None:
        before = self.status
        super()._act(actions)
        self.events += events_between(before, self.status)

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    def last(self, reason: str) -> Event:
        return next(event for event in reversed(self.events) if event.reason == reason)


def stuck(reason: str = "ImagePullBackOff", message: str = IMAGE) -> tuple[PodView, ...]:
    return (PodView.of(pod_body(**waiting(reason, message))),)


def test_a_job_that_goes_well_has_a_beginning_and_an_end() -> None:
    job = Told()
    job.run()
    counts = Counts(read=100, written=98, failed=2, skipped=0)
    job.set_report(JobState.SUCCEEDED, counts=counts, output="s3://out/")
    job.reconcile()
    assert job.reasons == ["AttemptStarted", "Succeeded"]
    assert job.events[0].note == "attempt 1 begins as RayJob job-1"
    words = "100 rows read: 98 written, 2 failed, 0 skipped; output in s3://out/"
    assert job.events[1] == Event("Succeeded", "Finish", words)


def test_without_counts_the_end_is_told_in_the_words_of_the_status() -> None:
    job = Told()
    job.run()
    job.set_report(JobState.SUCCEEDED, message="an output was there")
    job.reconcile()
    assert job.last("Succeeded").note == "an output was there"


def test_looks_at_which_nothing_happens_tell_nothing() -> None:
    job = Told()
    job.run(rows=10)
    for rows in range(11, 40):
        job.set_report(JobState.RUNNING, rows=rows)
        job.reconcile(seconds=2)
    assert job.reasons == ["AttemptStarted"]


def test_an_attempt_that_fails_and_the_next_one() -> None:
    job = Told(retry={"maxAttempts": 2, "backoff": {"initial": "30s"}})
    job.run()
    job.fail("NodeLost", "node a-1 was drained")
    assert job.reasons == ["AttemptStarted", "AttemptFailed", "Retrying"]
    failed, retrying = job.events[-2:]
    assert failed.type == "Warning"
    assert failed.note == "attempt 1 failed: NodeLost: node a-1 was drained"
    assert retrying.type == "Normal"
    assert retrying.note == f"attempt 2 begins at {job.status['nextAttemptTime']}"
    job.finalize_deletions()
    for _ in range(4):
        job.reconcile(seconds=20)
        job.finalize_deletions()
    assert job.last("AttemptStarted").note == "attempt 2 begins as RayJob job-2"


def test_the_failure_that_ends_the_job_is_told_once() -> None:
    job = Told()
    job.run()
    job.fail("BadInput", "s3://in/ is empty")
    assert job.reasons == ["AttemptStarted", "Failed"]
    assert job.events[-1] == Event(
        "Failed", "Finish", "attempt 1: BadInput: s3://in/ is empty", "Warning"
    )


def test_a_deadline_that_passes() -> None:
    job = Told(deadlines={"total": "1h"})
    job.run()
    job.reconcile(seconds=3700)
    assert job.last("Failed").note == (
        "attempt 1: DeadlineExceeded: the job has not ended within deadlines.total 1h"
    )


def test_a_job_that_cannot_be_rendered() -> None:
    job = Told(steps=[{"name": "odd"}])
    job.reconcile()
    assert job.reasons == ["Failed"]
    assert job.events[0].note.startswith("InvalidSpec: ")


def test_suspending_and_resuming() -> None:
    job = Told()
    job.run()
    for suspend in (True, False):
        job.spec["suspend"] = suspend
        for _ in range(4):
            job.reconcile(seconds=5)
            job.finalize_deletions()
    assert job.reasons == ["AttemptStarted", "Suspended", "Resumed", "AttemptStarted"]


def test_new_trouble_posts_an_event_with_its_message() -> None:
    job = Told()
    job.start()
    job.pods = stuck()
    job.reconcile()
    job.pods = stuck("ErrImagePull", "not found")
    for _ in range(5):
        job.reconcile(seconds=30)
    assert job.reasons == ["AttemptStarted", "ImagePull"]
    assert job.events[-1] == Event("ImagePull", "Wait", f"pod job-1-head: {IMAGE}", "Warning")


def test_trouble_that_has_healed_and_returns_is_told_again() -> None:
    job = Told()
    job.start()
    for pods in (stuck(), (), stuck()):
        job.pods = pods
        job.reconcile()
    assert job.reasons.count("ImagePull") == 2


def test_waiting_for_kueue_is_no_warning() -> None:
    job = Told()
    job.plan()
    job.ray_job["spec"]["suspend"] = True
    job.reconcile()
    assert (job.events[-1].reason, job.events[-1].type) == ("Queued", "Normal")


def test_another_word_of_kuberay_is_no_news() -> None:
    job = Told()
    job.plan()
    job.set_kuberay_status(**INITIALIZING)
    job.reconcile()
    job.set_kuberay_status(**RUNNING)
    job.reconcile()
    assert job.reasons == ["AttemptStarted"]


STEPS = st.sampled_from(["look", "stuck", "healed", "rows", "fail", "suspend", "resume", "gone"])


@given(steps=st.lists(STEPS, max_size=30))
@settings(max_examples=examples(100), deadline=None)
def test_reconcile_without_changes_posts_no_event(steps: list[str]) -> None:
    job = Told(retry={"maxAttempts": 10, "backoff": {"initial": "0s"}})
    for step in steps:
        _do(job, step)
        job.reconcile(seconds=1)
        assert events_between(job.status, job.status) == []
        told = [(event.reason, event.note) for event in job.events]
        numbered = [one for one in told if "attempt " in one[1]]
        assert len(set(numbered)) == len(numbered), "each attempt begins and ends once"
        assert all(event.note and len(event.reason) <= 128 for event in job.events)


def _do(job: Told, step: str) -> None:
    if step in ("suspend", "resume"):
        job.spec["suspend"] = step == "suspend"
    elif step in ("stuck", "healed"):
        job.pods = stuck() if step == "stuck" else ()
    elif step == "gone":
        job.finalize_deletions()
        job.report = None
    elif job.ray_jobs.get(job.status.get("rayJobName", "")):
        job.set_kuberay_status(**RUNNING)
        if step == "rows":
            job.set_report(JobState.RUNNING, rows=5)
        elif step == "fail":
            job.set_report(JobState.FAILED, reason="NodeLost", message="in its words")


@pytest.mark.parametrize("limit", ["deadlines.active", "deadlines.stall"])
def test_a_limit_of_an_attempt_is_named(limit: str) -> None:
    job = Told(deadlines={limit.partition(".")[2]: "1m"}, retry={"maxAttempts": 1})
    job.run()
    job.reconcile(seconds=90)
    assert limit in job.last("Failed").note
