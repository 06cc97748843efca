"""Rules that hold for whatever is seen of a job."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.model import JobView, Observed
from batchinference_operator.reconcile.reconcile import finished, reconcile
from batchinference_operator.runtime.cache import job_view
from batchinference_operator.status.conditions import holds
from batchinference_operator.status.observations import PodView, RayJobView, Trouble
from batchinference_operator.status.status import Finding, Status, build_status, merge_patch
from batchinference_operator.status.verdict import judge
from support.operator_objects import (
    OTHER_UID,
    SETTINGS,
    UID,
    job_body,
    ray_job_body,
    report,
)

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)

RAY_JOBS = st.builds(
    lambda owner_uid, ray, kuberay, ip, end, deleting: _ray_job(
        owner_uid, deleting, jobStatus=ray, jobDeploymentStatus=kuberay,
        rayClusterStatus={"head": {"podIP": ip, "serviceName": "head"}}, endTime=end,
    ),
    st.sampled_from([UID, UID, UID, OTHER_UID, None]),
    st.sampled_from(["", "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]),
    st.sampled_from(["", "Initializing", "Running", "Complete", "Failed", "ValidationFailed"]),
    st.sampled_from(["", "10.0.0.7"]),
    st.sampled_from([None, "2026-03-01T12:00:00Z"]),
    st.booleans(),
)  # fmt: skip
REPORTS = st.builds(
    lambda state, rows, words: report(state, rows=rows, reason=words, message=words),
    st.sampled_from(list(JobState)),
    st.none() | st.integers(0, 99),
    st.none() | st.text(max_size=20),
)
PODS = st.lists(
    st.builds(
        lambda name, trouble: PodView(name, "job", trouble),
        st.sampled_from(["head", "worker-a", "worker-b"]),
        st.none() | st.just(Trouble("ImagePull", "no such image")),
    ),
    max_size=3,
).map(tuple)
MOMENTS = st.integers(-100, 10_000).map(lambda seconds: NOON + timedelta(seconds=seconds))


def _ray_job(owner_uid: str | None, deleting: bool, **status: object) -> RayJobView:
    body = ray_job_body(owner_uid=owner_uid, **status)
    if deleting:
        body["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    return RayJobView.of(body)


@st.composite
def jobs(draw: st.DrawFn) -> JobView:
    """A job with any status that the operator may have written."""
    body = job_body()
    if draw(st.booleans()):
        seen, told = draw(st.none() | RAY_JOBS), draw(st.none() | REPORTS)
        phase, verdict = judge(seen, (), told, "s3://out")
        finding = Finding(phase, verdict, seen, told)
        body["status"] = build_status({}, 1, finding, "2026-03-01T12:00:00Z")
    if draw(st.integers(0, 9)) == 0:
        body["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    if draw(st.integers(0, 9)) == 0:
        body["spec"]["read"] = {"format": "text", "paths": []}
    return job_view(body)


OBSERVED = st.builds(
    Observed, jobs(), st.none() | RAY_JOBS, PODS, st.none() | REPORTS, st.booleans()
)
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
def test_a_finished_job_gets_no_objects_and_no_other_status(
    observed: Observed, end: str, now: datetime
) -> None:
    status = {**observed.job.status, "conditions": [{"type": end, "status": "True"}]}
    ended = replace(observed, job=replace(observed.job, status=status))
    actions = reconcile(ended, SETTINGS, now)
    assert (actions.create, actions.status, actions.again_after) == ((), None, None)


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_a_ray_job_is_made_only_where_none_is_and_none_was(
    observed: Observed, now: datetime
) -> None:
    made = [body["kind"] for body in reconcile(observed, SETTINGS, now).create]
    if observed.job.status.get("rayJobName"):
        assert made == []
    elif observed.ray_job is None:
        assert made in ([], ["ConfigMap", "RayJob"])
    else:
        assert made in ([], ["Secret"])


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_only_the_jobs_own_ray_job_is_released_and_only_after_the_end(
    observed: Observed, now: datetime
) -> None:
    actions = reconcile(observed, SETTINGS, now)
    if actions.release is not None:
        assert finished(observed.job)
        assert observed.ray_job is not None
        assert observed.ray_job.owner_uid == observed.job.uid


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_a_job_that_goes_on_is_looked_at_again(observed: Observed, now: datetime) -> None:
    """Any event may be lost: nothing that is under way depends on one."""
    actions = reconcile(observed, SETTINGS, now)
    if actions.status is None:
        assert actions.again_after is None
        return
    assert (actions.again_after is None) == _over(actions.status)


@given(observed=OBSERVED, now=MOMENTS)
@RULE
def test_a_second_look_at_the_same_writes_nothing(observed: Observed, now: datetime) -> None:
    first = reconcile(observed, SETTINGS, now).status
    if first is None or _over(first):
        return
    again = replace(observed, job=replace(observed.job, status=first))
    second = reconcile(again, SETTINGS, now + timedelta(seconds=1)).status
    assert second is not None
    if not _over(second):  # it may be in the second of the grace's end
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
        found.add("released" if actions.release else str((actions.status or {}).get("phase")))
        if actions.status:
            found.update(condition["reason"] for condition in actions.status["conditions"])

    collect()
    wanted = {"released", "None", "Pending", "Starting", "Running", "Finalizing", "Failed"}
    wanted |= {"Succeeded", "NameTaken", "RayJobDeleted", "InvalidSpec", "ImagePull"}
    assert wanted <= found
