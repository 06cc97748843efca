"""Rules of `reconcile` that hold for any observation of a job."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.rendering import Names
from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState
from batchinference.spec.status import BatchInferenceStatus, Phase
from batchinference_operator.reconcile.driver_silence import must_poll_driver
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.mutable_spec import MutableSpec
from batchinference_operator.reconcile.observed_and_actions import Actions, DriverAnswer, Observed
from batchinference_operator.reconcile.reconcile import reconcile
from batchinference_operator.status.attempts import (
    add_attempt,
    attempt_number,
    end_attempt,
    is_running,
    last_attempt,
)
from batchinference_operator.status.conditions import Summary, is_condition_true
from batchinference_operator.status.job_status import (
    Status,
    StatusUpdate,
    build_status,
    merge_patch,
)
from batchinference_operator.status.phase import derive_phase
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import RayJobView
from support.operator.objects import (
    CONFIG,
    OTHER_UID,
    UID,
    job_body,
    placed,
    pod_body,
    ray_job_body,
    report,
    waiting,
)
from support.tiers import examples

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
NOON_STAMP = "2026-03-01T12:00:00Z"

NAMES = ("job-1", "job-2", "job-3")
RAY_JOBS = st.builds(
    lambda name, owner_uid, ray, kuberay, end, deleting, kept: _ray_job(
        name, owner_uid, deleting, kept, jobStatus=ray, jobDeploymentStatus=kuberay,
        rayClusterStatus={"head": {"podIP": "10.0.0.7", "serviceName": "head"}}, endTime=end,
    ),
    st.sampled_from(NAMES),
    st.sampled_from([UID, UID, UID, OTHER_UID, None]),
    st.sampled_from(["", "PENDING", *["RUNNING"] * 4, "STOPPED", "SUCCEEDED", "FAILED"]),
    st.sampled_from(["", "Initializing", "Running", "Complete", "Failed", "ValidationFailed"]),
    st.sampled_from([None, NOON_STAMP]),
    st.booleans(),
    st.booleans(),
)  # fmt: skip
REPORTS = st.builds(
    lambda state, rows, cause, text: report(state, rows=rows, reason=cause, message=text),
    st.sampled_from([*JobState, JobState.FAILED, JobState.FAILED]),
    st.none() | st.integers(0, 99),
    st.sampled_from([None, "NodeLost", "Interrupted", "BadInput"]),
    st.none() | st.text(max_size=20),
)
PODS = st.lists(
    st.builds(
        lambda name, attempt, status: PodView.of(pod_body(name, attempt=attempt, **status)),
        st.sampled_from(["head", "worker-a", "worker-b"]),
        st.integers(1, 3),
        st.sampled_from([{}, placed(), waiting("ImagePullBackOff", "no such image")]),
    ),
    max_size=3,
).map(tuple)
MOMENTS = st.integers(-100, 10_000).map(lambda seconds: NOON + timedelta(seconds=seconds))


def _ray_job(
    name: str, owner_uid: str | None, deleting: bool, kept: bool, **status: object
) -> RayJobView:
    body = ray_job_body(name, owner_uid=owner_uid, **status)
    body["spec"]["ttlSecondsAfterFinished"] = 600 if kept else 0
    if deleting:
        body["metadata"]["deletionTimestamp"] = NOON_STAMP
    return RayJobView.of(body)


def _is_finished(status: Status) -> bool:
    return is_condition_true(status, "Complete") or is_condition_true(status, "Failed")


POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "suspend": st.sampled_from([True, False, False]),
        "retry": st.just({"maxAttempts": 2, "backoff": {"initial": "1m"}}),
        "deadlines": st.sampled_from([{"total": "1h"}, {"pending": "5m"}, {"active": "30m"}]),
        "ttl": st.sampled_from([{"cluster": "10m"}, {"rayJob": "1h"}]),
    },
)


@st.composite
def jobs(draw: st.DrawFn) -> JobView:
    """Generate a job with any status that the operator can write."""
    body = job_body()
    if draw(st.integers(0, 4)):
        body["status"] = draw(statuses())
    if draw(st.integers(0, 9)) == 0:
        body["metadata"]["deletionTimestamp"] = NOON_STAMP
    if draw(st.integers(0, 9)) == 0:
        body["spec"]["read"] = {"format": "text", "paths": []}
    body["spec"] |= draw(POLICIES)
    return JobView.of(body)


@st.composite
def statuses(draw: st.DrawFn) -> Status:
    """Generate a status after up to three attempts. The last may still run."""
    status: Status = {}
    to_rfc3339 = NOON_STAMP
    for number in range(1, draw(st.sampled_from([0, 1, 1, 1, 2, 3])) + 1):
        outcome = draw(st.sampled_from(["Failed", "Suspended"]))
        status = end_attempt(status, outcome, to_rfc3339, Cause.NODE_LOST)
        status = add_attempt(status, Names("job", UID, number))
        if draw(st.booleans()):
            status["attempts"][-1]["startTime"] = to_rfc3339
    if draw(st.integers(0, 3)) == 0:
        status = end_attempt(status, "Failed", to_rfc3339, Cause.NODE_LOST, "gone")
        status |= draw(st.sampled_from([{}, {"nextAttemptTime": "2026-03-01T12:10:00Z"}]))
    seen, last = draw(st.none() | RAY_JOBS), draw(st.none() | REPORTS)
    phase, summary = Phase.PENDING, Summary("Pending", "waiting")
    if seen is not None:
        phase, summary = derive_phase(seen, (), last, "s3://out")
    if summary.complete or summary.failed:
        phase, summary = Phase.PENDING, Summary("Pending", "waiting")
    return build_status(status, 1, StatusUpdate(phase, summary, seen, last), to_rfc3339)


@st.composite
def observations(draw: st.DrawFn) -> Observed:
    """Generate a job with RayJobs, mostly including the RayJob of its last attempt. The driver
    reports only if the operator asks for a report."""
    job, some = draw(jobs()), draw(st.lists(RAY_JOBS, max_size=2))
    last = replace(draw(RAY_JOBS), name=f"job-{attempt_number(job.status)}", owner_uid=UID)
    mine = [last] if attempt_number(job.status) and draw(st.integers(0, 3)) else []
    observed = Observed(job, {seen.name: seen for seen in [*some, *mine]}, draw(PODS))
    if not must_poll_driver(observed) or not draw(st.integers(0, 3)):
        return observed
    return replace(observed, answer=DriverAnswer(reached=True, report=draw(REPORTS)))


# --- the rules --------------------------------------------------------------------------


def is_deterministic(observed: Observed, actions: Actions, now: datetime) -> None:
    before = copy.deepcopy(observed)
    assert reconcile(observed, CONFIG, now) == actions
    assert observed == before, "reconcile changes none of its arguments"


def leaves_a_finished_job_alone(observed: Observed, _: Actions, now: datetime) -> None:
    """Only observedGeneration changes."""
    for end in ("Complete", "Failed"):
        over = {"type": end, "status": "True", "lastTransitionTime": NOON_STAMP}
        status = {**observed.job.status, "conditions": [over]}
        ended = replace(observed, job=replace(observed.job, status=status))
        actions = reconcile(ended, CONFIG, now)
        assert actions.create == ()
        generation = {"observedGeneration": observed.job.generation}
        is_current = status.get("observedGeneration") == observed.job.generation
        expected = {**status, **generation, "conditions": [{**over, **generation}]}
        assert actions.status == (None if observed.job.deleting or is_current else expected)


def creates_one_ray_job_at_a_time(observed: Observed, actions: Actions, _: datetime) -> None:
    """A RayJob is created only if its attempt starts and no other attempt runs."""
    created = [body["metadata"]["name"] for body in actions.create if body["kind"] == "RayJob"]
    if not created:
        return
    status, ray_jobs = observed.job.status, observed.ray_jobs
    opening = attempt_number(status) + (not is_running(status))
    assert created == [f"job-{opening}"]
    assert not MutableSpec.of(observed.job.spec, CONFIG.defaults).suspend
    for number in range(1, opening) if not is_running(status) else ():
        seen = ray_jobs.get(f"job-{number}")
        assert seen is None or seen.ended or seen.owner_uid != UID
    seen = ray_jobs.get(created[0])
    assert seen is None or (seen.owner_uid == UID and not seen.deleting)


def removes_only_its_own_ray_jobs(observed: Observed, actions: Actions, _: datetime) -> None:
    for seen in actions.delete_ray_jobs:
        assert seen == observed.ray_jobs[seen.name]
    for seen in [*actions.delete_ray_jobs, *actions.release_clusters]:
        assert seen.owner_uid == UID
        clusters_with_pods = {pod.cluster for pod in observed.pods if pod.ended_at is None}
        assert not seen.deleting or seen.cluster in clusters_with_pods


def removes_nothing_before_the_status_says_so(
    observed: Observed, actions: Actions, _: datetime
) -> None:
    """While an attempt runs, only RayJobs of earlier attempts are removed."""
    if is_running(observed.job.status) and not (observed.job.finished or observed.job.deleting):
        numbers = [int(seen.name.removeprefix("job-")) for seen in actions.delete_ray_jobs]
        assert all(number < attempt_number(observed.job.status) for number in numbers)


def requeues_an_unfinished_job(observed: Observed, actions: Actions, _: datetime) -> None:
    """Any event may be lost, so progress must not depend on events."""
    if observed.job.deleting or observed.job.finished:
        return
    if actions.requeue_after is None:
        assert actions.status is not None
        assert _is_finished(actions.status) or is_condition_true(actions.status, "Suspended")


def writes_an_end_without_creating_objects(
    observed: Observed, actions: Actions, _: datetime
) -> None:
    """The API server may refuse objects. A refusal must not delay the end."""
    if actions.status is not None and not is_running(actions.status):
        assert actions.create == ()


def writes_a_valid_status(observed: Observed, actions: Actions, _: datetime) -> None:
    if actions.status is not None:
        BatchInferenceStatus.model_validate(actions.status, strict=False)


def writes_nothing_the_second_time(observed: Observed, _: Actions, now: datetime) -> None:
    first = reconcile(replace(observed, pods=()), CONFIG, now).status
    if first is None or _is_finished(first) or "startTime" not in last_attempt(first):
        return
    again = replace(observed, pods=(), job=replace(observed.job, status=first))
    second = reconcile(again, CONFIG, now + timedelta(seconds=1)).status
    if second is None or not is_running(second):  # a deadline may have expired in that second
        return
    if attempt_number(first) == attempt_number(
        second
    ):  # otherwise the RayJob of the next attempt exists
        assert merge_patch(first, second) == {}


def keeps_transition_times(observed: Observed, actions: Actions, _: datetime) -> None:
    """lastTransitionTime changes only when the status of the condition changes."""
    before = {c["type"]: c for c in observed.job.status.get("conditions", [])}
    for condition in (actions.status or {}).get("conditions", []):
        old = before.get(condition["type"])
        if old is not None and old["status"] == condition["status"]:
            assert condition["lastTransitionTime"] == old["lastTransitionTime"]


RULES: list[Callable[[Observed, Actions, datetime], None]] = [
    is_deterministic,
    leaves_a_finished_job_alone,
    creates_one_ray_job_at_a_time,
    removes_only_its_own_ray_jobs,
    removes_nothing_before_the_status_says_so,
    requeues_an_unfinished_job,
    writes_an_end_without_creating_objects,
    writes_a_valid_status,
    writes_nothing_the_second_time,
    keeps_transition_times,
]


@given(observed=observations(), now=MOMENTS)
@settings(max_examples=examples(1000, 300), deadline=None)
def test_reconcile_follows_all_rules(observed: Observed, now: datetime) -> None:
    actions = reconcile(observed, CONFIG, now)
    for rule in RULES:
        rule(observed, actions, now)
