"""Rules that hold for whatever is seen of a job."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.rendering import Names
from batchinference.spec.causes import Cause
from batchinference.spec.limits import Limits
from batchinference.spec.phases import Phase
from batchinference.spec.report import JobState
from batchinference.spec.status import BatchInferenceStatus
from batchinference_operator.reconcile.following import wants_report
from batchinference_operator.reconcile.model import JobView, Observed
from batchinference_operator.reconcile.policies import Policies
from batchinference_operator.reconcile.reconcile import finished, reconcile
from batchinference_operator.status.attempts import closed, current, is_open, number_of, opened
from batchinference_operator.status.conditions import holds
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.pods import PodView
from batchinference_operator.status.status import Finding, Status, build_status, merge_patch
from batchinference_operator.status.verdict import judge
from support.operator_objects import (
    OTHER_UID,
    SETTINGS,
    UID,
    job_body,
    placed,
    pod_body,
    ray_job_body,
    report,
    waiting,
)

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)

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
    st.sampled_from([None, "2026-03-01T12:00:00Z"]),
    st.booleans(),
    st.booleans(),
)  # fmt: skip
REPORTS = st.builds(
    lambda state, rows, cause, words: report(state, rows=rows, reason=cause, message=words),
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
        body["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    return RayJobView.of(body)


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
    """A job with any status that the operator may have written."""
    body = job_body()
    if draw(st.integers(0, 4)):
        body["status"] = draw(statuses())
    if draw(st.integers(0, 9)) == 0:
        body["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    if draw(st.integers(0, 9)) == 0:
        body["spec"]["read"] = {"format": "text", "paths": []}
    body["spec"] |= draw(POLICIES)
    return JobView.of(body)


@st.composite
def statuses(draw: st.DrawFn) -> Status:
    """After up to three attempts, the last of which may go on."""
    status: Status = {}
    stamp = "2026-03-01T12:00:00Z"
    for number in range(1, draw(st.sampled_from([0, 1, 1, 1, 2, 3])) + 1):
        outcome = draw(st.sampled_from(["Failed", "Suspended"]))
        status = closed(status, outcome, stamp, Cause.NODE_LOST)
        status = opened(status, Names("job", UID, number))
        if draw(st.booleans()):
            status["attempts"][-1]["startTime"] = stamp
    if draw(st.integers(0, 3)) == 0:
        status = closed(status, "Failed", stamp, Cause.NODE_LOST, "gone")
        status |= draw(st.sampled_from([{}, {"nextAttemptTime": "2026-03-01T12:10:00Z"}]))
    seen, told = draw(st.none() | RAY_JOBS), draw(st.none() | REPORTS)
    phase, verdict = judge(seen, (), told, "s3://out")
    if verdict.complete or verdict.failed:
        return status
    return build_status(status, 1, Finding(phase, verdict, seen, told), stamp)


@st.composite
def observations(draw: st.DrawFn) -> Observed:
    """A job with RayJobs, more often than not that of its last attempt among them. Its driver has
    something to say only where it is asked."""
    job, some = draw(jobs()), draw(st.lists(RAY_JOBS, max_size=2))
    last = replace(draw(RAY_JOBS), name=f"job-{number_of(job.status)}", owner_uid=UID)
    mine = [last] if number_of(job.status) and draw(st.integers(0, 3)) else []
    observed = Observed(job, {seen.name: seen for seen in [*some, *mine]}, draw(PODS))
    if not wants_report(observed) or not draw(st.integers(0, 3)):
        return observed
    return replace(observed, report=draw(REPORTS), driver_reached=True)


OBSERVED = observations()
RULE = settings(max_examples=150, deadline=None)


def _over(status: Status) -> bool:
    return holds(status, "Complete") or holds(status, "Failed")


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_the_same_seen_at_the_same_time_gives_the_same_actions(
    observed: Observed, now: datetime
) -> None:
    before = copy.deepcopy(observed)
    assert reconcile(observed, SETTINGS, now) == reconcile(before, SETTINGS, now)
    assert observed == before


@given(observed=OBSERVED, end=st.sampled_from(["Complete", "Failed"]), now=MOMENTS)
@RULE
def test_a_finished_job_gets_no_objects_and_no_other_status_but_for_its_generation(
    observed: Observed, end: str, now: datetime
) -> None:
    over = {"type": end, "status": "True", "lastTransitionTime": "2026-03-01T12:00:00Z"}
    status = {**observed.job.status, "conditions": [over]}
    ended = replace(observed, job=replace(observed.job, status=status))
    actions = reconcile(ended, SETTINGS, now)
    assert actions.create == ()
    at_rest = observed.job.deleting or status.get("observedGeneration") == observed.job.generation
    generation = {"observedGeneration": observed.job.generation}
    now_observed = {**status, **generation, "conditions": [{**over, **generation}]}
    assert actions.status == (None if at_rest else now_observed)


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_a_ray_job_is_made_only_where_its_attempt_begins_and_no_other_goes_on(
    observed: Observed, now: datetime
) -> None:
    actions = reconcile(observed, SETTINGS, now)
    made = [body["metadata"]["name"] for body in actions.create if body["kind"] == "RayJob"]
    if not made:
        return
    status, ray_jobs = observed.job.status, observed.ray_jobs
    opening = number_of(status) + (not is_open(status))
    assert made == [f"job-{opening}"]
    assert not Policies.of(observed.job.spec, Limits()).suspend
    for number in range(1, opening) if not is_open(status) else ():
        seen = ray_jobs.get(f"job-{number}")
        assert seen is None or seen.ended or seen.owner_uid != UID
    seen = ray_jobs.get(made[0])
    assert seen is None or (seen.owner_uid == UID and not seen.deleting)


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_only_the_jobs_own_ray_jobs_are_released_or_removed(
    observed: Observed, now: datetime
) -> None:
    actions = reconcile(observed, SETTINGS, now)
    for seen in actions.remove:
        assert seen == observed.ray_jobs[seen.name]
    for seen in [*actions.remove, *actions.release]:
        assert seen.owner_uid == UID
        holds = {pod.cluster for pod in observed.pods if pod.ended is None}
        assert not seen.deleting or seen.cluster in holds, "it is done with"


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_what_goes_on_is_removed_only_once_the_status_says_so(
    observed: Observed, now: datetime
) -> None:
    if is_open(observed.job.status) and not finished(observed.job):
        assert reconcile(observed, SETTINGS, now).remove == ()


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_a_job_that_goes_on_is_looked_at_again(observed: Observed, now: datetime) -> None:
    """Any event may be lost: nothing that is under way depends on one."""
    job, actions = observed.job, reconcile(observed, SETTINGS, now)
    if job.deleting or finished(job):
        return
    if actions.again_after is None:
        assert actions.status is not None
        assert _over(actions.status) or holds(actions.status, "Suspended")


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_an_end_waits_for_nothing_that_may_be_refused(observed: Observed, now: datetime) -> None:
    actions = reconcile(observed, SETTINGS, now)
    if actions.status is not None and not is_open(actions.status):
        assert actions.create == ()


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_a_status_is_one_that_the_specification_knows(observed: Observed, now: datetime) -> None:
    status = reconcile(observed, SETTINGS, now).status
    if status is not None:
        BatchInferenceStatus.model_validate(status, strict=False)


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_a_second_look_at_the_same_writes_nothing(observed: Observed, now: datetime) -> None:
    first = reconcile(replace(observed, pods=()), SETTINGS, now).status
    if first is None or _over(first) or "startTime" not in (current(first) or {}):
        return
    again = replace(observed, pods=(), job=replace(observed.job, status=first))
    second = reconcile(again, SETTINGS, now + timedelta(seconds=1)).status
    if second is None or not is_open(second):  # it may be in the second of a deadline
        return
    if number_of(first) == number_of(second):  # the next RayJob may be there
        assert merge_patch(first, second) == {}


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_a_time_of_transition_changes_only_with_a_transition(
    observed: Observed, now: datetime
) -> None:
    status = reconcile(observed, SETTINGS, now).status
    before = {c["type"]: c for c in observed.job.status.get("conditions", [])}
    for condition in (status or {}).get("conditions", []):
        old = before.get(condition["type"])
        if old is not None and old["status"] == condition["status"]:
            assert condition["lastTransitionTime"] == old["lastTransitionTime"]


def test_the_strategies_reach_every_kind_of_verdict() -> None:
    """The rules above would hold for nothing if nothing were generated."""
    found: set[str] = set()

    @given(observed=OBSERVED, now=MOMENTS)
    @settings(max_examples=1000, deadline=None, database=None, derandomize=True)
    def collect(observed: Observed, now: datetime) -> None:
        actions = reconcile(observed, SETTINGS, now)
        found.update(["released"] * bool(actions.release) + ["removed"] * bool(actions.remove))
        found.add(str((actions.status or {}).get("phase")))
        if actions.status:
            found.update(condition["reason"] for condition in actions.status["conditions"])

    collect()
    wanted = {"released", "removed", "None", *Phase} | {"NameTaken", "RayJobDeleted", "InvalidSpec"}
    wanted |= {"ImagePull", "DeadlineExceeded"}
    assert wanted <= found
