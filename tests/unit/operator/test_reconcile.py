"""What is done about a job, for everything that may be seen of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import yaml

from batchinference.spec import SpecError, parse
from batchinference.spec.cluster import Cluster
from batchinference.spec.report import JobState, Report
from batchinference_operator.reconcile.model import Actions, JobView, Observed
from batchinference_operator.reconcile.reconcile import (
    IDLE_SECONDS,
    POLL_SECONDS,
    REPORT_GRACE_SECONDS,
    SILENT_SECONDS,
    Settings,
    finished,
    names_of,
    reconcile,
    refused,
    render,
    settled,
    wants_report,
)
from batchinference_operator.runtime.cache import job_view
from batchinference_operator.status.observations import PodView, RayJobView, Trouble
from support.documents import model_step
from support.operator_objects import (
    INITIALIZING,
    NAMESPACE,
    OTHER_UID,
    RUNNING,
    SETTINGS,
    SUCCEEDED,
    UID,
    job_body,
    ray_job_body,
    report,
)

NOW = datetime(2026, 3, 1, 12, 30, 0, tzinfo=UTC)
ENDED = datetime(2026, 3, 1, 12, 10, 0, tzinfo=UTC)


def job(status: dict[str, Any] | None = None, **metadata: Any) -> JobView:
    return job_view(job_body(status=status, **metadata))


def view(owner_uid: str | None = UID, **status: Any) -> RayJobView:
    return RayJobView.of(ray_job_body(owner_uid=owner_uid, **status))


def ended(kind: str) -> dict[str, Any]:
    """A status that says the job is at its end."""
    return {"phase": "Succeeded", "conditions": [{"type": kind, "status": "True"}]}


def done(observed: Observed, now: datetime = NOW) -> Actions:
    return reconcile(observed, SETTINGS, now)


def reason(actions: Actions) -> str:
    """The one reason that all conditions give."""
    assert actions.status is not None
    (found,) = {str(condition["reason"]) for condition in actions.status["conditions"]}
    return found


def message(actions: Actions) -> str:
    assert actions.status is not None
    (found,) = {str(condition["message"]) for condition in actions.status["conditions"]}
    return found


def phase(actions: Actions) -> str:
    assert actions.status is not None
    return str(actions.status["phase"])


# --- a new job --------------------------------------------------------------------------


def test_a_new_job_gets_config_map_and_ray_job_in_this_order() -> None:
    actions = done(Observed(job()))
    assert [body["kind"] for body in actions.create] == ["ConfigMap", "RayJob"]
    assert (phase(actions), reason(actions)) == ("Pending", "Pending")
    assert actions.again_after == POLL_SECONDS
    assert actions.release is None


def test_its_objects_are_in_its_namespace_and_die_with_it() -> None:
    for body in done(Observed(job())).create:
        (owner,) = body["metadata"]["ownerReferences"]
        assert body["metadata"]["namespace"] == NAMESPACE
        assert (owner["uid"], owner["controller"]) == (UID, True)


def test_the_operators_defaults_reach_the_ray_job() -> None:
    *_, ray_job = render(job(), SETTINGS)
    assert "registry/pipeline:1" in yaml.safe_dump(ray_job)


def test_a_job_whose_ray_job_was_never_seen_is_started_again() -> None:
    pending = done(Observed(job())).status
    actions = done(Observed(job(pending)))
    assert len(actions.create) == 2
    assert actions.status == pending


def test_its_ray_job_gets_the_token_as_soon_as_it_is_seen() -> None:
    actions = done(Observed(job(), view(**INITIALIZING)))
    (secret,) = actions.create
    (owner,) = secret["metadata"]["ownerReferences"]
    seen = view(**INITIALIZING)
    assert (secret["kind"], secret["metadata"]["namespace"]) == ("Secret", NAMESPACE)
    assert (owner["kind"], owner["name"], owner["uid"]) == ("RayJob", seen.name, seen.uid)
    assert actions.status is not None
    assert actions.status["rayJobName"] == seen.name


def test_the_token_is_made_under_the_name_that_the_ray_job_asks_for() -> None:
    (secret,) = done(Observed(job(), view(**INITIALIZING))).create
    *_, ray_job = done(Observed(job())).create
    asked = ray_job["spec"]["rayClusterSpec"]["authOptions"]["secretName"]
    assert secret["metadata"]["name"] == asked


def test_the_token_is_made_once_the_status_says_so() -> None:
    first = done(Observed(job(), view(**INITIALIZING))).status
    assert done(Observed(job(first), view(**INITIALIZING))).create == ()


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"read": {"format": "text"}},
        {"steps": [{"name": "x"}]},
        {"write": {"format": "parquet", "path": "relative/result"}},
        {"unknown": 1},
    ],
    ids=["empty", "no-paths", "no-kind-of-step", "lost-output", "unknown-field"],
)
def test_an_invalid_spec_creates_nothing_and_fails_in_the_parsers_words(
    spec: dict[str, Any],
) -> None:
    body = job_body()
    view_of_it = job_view({**body, "spec": {**body["spec"], **spec} if spec else {}})
    with pytest.raises(SpecError) as refusal:
        render(view_of_it, SETTINGS)
    actions = done(Observed(view_of_it))
    assert actions.create == ()
    assert (phase(actions), reason(actions)) == ("Failed", "InvalidSpec")
    assert message(actions) == str(refusal.value)
    assert actions.again_after is None


def test_a_job_without_any_image_is_invalid_and_says_what_to_set() -> None:
    bare = Settings(Cluster(), SETTINGS.token_key)
    actions = reconcile(Observed(job()), bare, NOW)
    assert actions.create == ()
    assert "spec.cluster.image" in message(actions)


# --- the token --------------------------------------------------------------------------


def token_in(job: JobView, settings: Settings = SETTINGS) -> str:
    (secret,) = reconcile(Observed(job, view(job.uid)), settings, NOW).create
    (token,) = secret["stringData"].values()
    return str(token)


def test_the_token_is_the_same_for_the_same_job_whenever_it_is_asked_for() -> None:
    assert token_in(job()) == token_in(job(resourceVersion="99")) == SETTINGS.token(UID)


def test_the_token_is_another_for_another_job_and_for_another_key() -> None:
    other_key = Settings(SETTINGS.defaults, b"another key of sixteen bytes")
    tokens = {token_in(job()), token_in(job(uid=OTHER_UID)), token_in(job(), other_key)}
    assert len(tokens) == 3


def test_the_token_stands_in_the_secret_alone() -> None:
    token = SETTINGS.token(UID)
    made = [*done(Observed(job())).create, *done(Observed(job(), view(**INITIALIZING))).create]
    assert [body["kind"] for body in made if token in repr(body)] == ["Secret"]


# --- a job with a RayJob ----------------------------------------------------------------


def test_a_ray_job_that_is_getting_ready_is_looked_at_now_and_then() -> None:
    actions = done(Observed(job(), view(**INITIALIZING)))
    assert (phase(actions), reason(actions)) == ("Starting", "Starting")
    assert actions.status is not None
    assert actions.status["rayJobName"] == "job-1"
    assert actions.again_after == IDLE_SECONDS


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, "Starting"),
        (report(JobState.PREPARING), "Starting"),
        (report(JobState.RUNNING, rows=3), "Running"),
        (report(JobState.FINALIZING, rows=3), "Finalizing"),
    ],
    ids=["no-report-yet", "preparing", "running", "finalizing"],
)
def test_a_driver_that_answers_is_asked_often(told: Report | None, expected: str) -> None:
    actions = done(Observed(job(), view(**RUNNING), report=told, driver_reached=True))
    assert phase(actions) == expected
    assert actions.again_after == POLL_SECONDS


def test_a_driver_that_does_not_answer_is_asked_less_often_and_its_job_goes_on() -> None:
    running = done(
        Observed(job(), view(**RUNNING), report=report(rows=3), driver_reached=True)
    ).status
    actions = done(Observed(job(running), view(**RUNNING)))
    assert (phase(actions), reason(actions)) == ("Running", "DriverSilent")
    assert actions.again_after == SILENT_SECONDS


def test_a_pod_in_trouble_shows_in_the_status() -> None:
    pod = PodView("job-1-worker", "job", Trouble("Unschedulable", "0/3 nodes are available"))
    actions = done(Observed(job(), view(**INITIALIZING), (pod,)))
    assert (phase(actions), reason(actions)) == ("Pending", "Unschedulable")
    assert message(actions) == "pod job-1-worker: 0/3 nodes are available"


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
@pytest.mark.parametrize("ray_job", [RUNNING, SUCCEEDED], ids=["still-running", "ended"])
def test_the_drivers_last_report_ends_the_job(state: JobState, ray_job: dict[str, Any]) -> None:
    last = report(state, rows=9)
    actions = done(Observed(job(), view(**ray_job), report=last, driver_reached=True))
    assert actions.status is not None
    assert finished(replace(job(), status=actions.status))
    assert actions.status["completionTime"] == "2026-03-01T12:09:00Z"
    assert actions.again_after is None


def test_a_ray_job_that_kuberay_refuses_fails_the_job_at_once() -> None:
    refused_one = view(jobDeploymentStatus="ValidationFailed", message="spec is invalid")
    actions = done(Observed(job(), refused_one))
    assert (phase(actions), reason(actions)) == ("Failed", "ValidationFailed")
    assert actions.again_after is None


# --- the report of a RayJob that has ended ----------------------------------------------


@pytest.mark.parametrize("seconds", [0, 1, REPORT_GRACE_SECONDS - 1])
def test_the_last_report_is_asked_for_again_within_the_grace(seconds: float) -> None:
    actions = done(Observed(job(), view(**SUCCEEDED)), ENDED + timedelta(seconds=seconds))
    assert (phase(actions), reason(actions)) == ("Finalizing", "Finalizing")
    assert actions.again_after == POLL_SECONDS


@pytest.mark.parametrize("seconds", [REPORT_GRACE_SECONDS, REPORT_GRACE_SECONDS + 1, 86_400])
def test_after_the_grace_the_job_ends_without_the_report(seconds: float) -> None:
    actions = done(Observed(job(), view(**SUCCEEDED)), ENDED + timedelta(seconds=seconds))
    assert phase(actions) == "Succeeded"
    assert "could not be read" in message(actions)
    assert actions.again_after is None


def test_the_grace_counts_in_any_time_zone() -> None:
    ray_job = view(**{**SUCCEEDED, "endTime": "2026-03-01T14:10:00+02:00"})
    east = timezone(timedelta(hours=9))
    within = (ENDED + timedelta(seconds=30)).astimezone(east)
    beyond = (ENDED + timedelta(seconds=90)).astimezone(east)
    assert phase(done(Observed(job(), ray_job), within)) == "Finalizing"
    assert phase(done(Observed(job(), ray_job), beyond)) == "Succeeded"


def test_times_are_written_in_utc() -> None:
    east = datetime(2026, 3, 1, 21, 30, 0, tzinfo=timezone(timedelta(hours=9)))
    status = done(Observed(job()), east).status
    assert status is not None
    times = {condition["lastTransitionTime"] for condition in status["conditions"]}
    assert times == {"2026-03-01T12:30:00Z"}


def test_a_clock_behind_kuberays_only_lengthens_the_grace() -> None:
    actions = done(Observed(job(), view(**SUCCEEDED)), ENDED - timedelta(seconds=30))
    assert phase(actions) == "Finalizing"


@pytest.mark.parametrize(
    ("ray_job", "reached"),
    [
        (SUCCEEDED, True),
        ({**SUCCEEDED, "endTime": None}, False),
        ({**SUCCEEDED, "jobStatus": "", "jobDeploymentStatus": "Failed"}, False),
    ],
    ids=["the-driver-left-none", "kuberay-gives-no-end", "no-driver-ever"],
)
def test_there_is_no_grace_where_nothing_can_be_waited_for(
    ray_job: dict[str, Any], reached: bool
) -> None:
    actions = done(Observed(job(), view(**ray_job), driver_reached=reached), ENDED)
    assert phase(actions) in {"Succeeded", "Failed"}


# --- a RayJob that is gone, or somebody else's ------------------------------------------


def test_a_ray_job_that_was_deleted_fails_the_job_and_is_not_made_again() -> None:
    running = done(
        Observed(job(), view(**RUNNING), report=report(rows=3), driver_reached=True)
    ).status
    actions = done(Observed(job(running)))
    assert actions.create == ()
    assert (phase(actions), reason(actions)) == ("Failed", "RayJobDeleted")
    assert "job-1" in message(actions)
    assert actions.status is not None
    assert actions.status["progress"] == {"rows": 3}


@pytest.mark.parametrize(
    ("owner_uid", "words"),
    [(OTHER_UID, "of a deleted BatchInference"), (None, "is not this job's")],
    ids=["a-former-jobs", "nobodys"],
)
@pytest.mark.parametrize("status", [INITIALIZING, RUNNING, SUCCEEDED])
def test_a_foreign_ray_job_is_waited_out(
    owner_uid: str | None, words: str, status: dict[str, Any]
) -> None:
    actions = done(Observed(job(), view(owner_uid, **status)))
    assert (actions.create, actions.release) == ((), None)
    assert (phase(actions), reason(actions)) == ("Pending", "NameTaken")
    assert words in message(actions)
    assert actions.again_after == POLL_SECONDS


def test_the_job_starts_when_the_foreign_ray_job_is_gone() -> None:
    waiting = done(Observed(job(), view(OTHER_UID))).status
    assert len(done(Observed(job(waiting))).create) == 2


# --- a job at its end -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Complete", "Failed"])
def test_the_cluster_of_a_finished_job_is_released(kind: str) -> None:
    actions = done(Observed(job(ended(kind)), view(**SUCCEEDED)))
    assert actions == Actions(release="job-1")


def test_it_is_released_once() -> None:
    body = ray_job_body(**SUCCEEDED)
    body["spec"]["ttlSecondsAfterFinished"] = 0
    assert done(Observed(job(ended("Complete")), RayJobView.of(body))) == Actions()


def test_a_ray_job_that_goes_or_is_not_the_jobs_is_left_alone() -> None:
    going = ray_job_body(**SUCCEEDED)
    going["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    over = job(ended("Complete"))
    assert done(Observed(over, RayJobView.of(going))) == Actions()
    assert done(Observed(over, view(OTHER_UID, **SUCCEEDED))) == Actions()
    assert done(Observed(over)) == Actions()


def test_nothing_is_done_for_a_job_that_is_being_deleted() -> None:
    going = job(deletionTimestamp="2026-03-01T12:30:00Z")
    for ray_job in (None, view(**RUNNING), view(OTHER_UID), view(**SUCCEEDED)):
        assert done(Observed(going, ray_job)) == Actions()
        assert not wants_report(Observed(going, ray_job))


@pytest.mark.parametrize(
    ("status", "is_finished"),
    [({}, False), ({"phase": "Succeeded"}, False), (ended("Complete"), True),
     (ended("Failed"), True), (ended("Reconciling"), False)],
    ids=["none", "phase-alone", "complete", "failed", "reconciling"],
)  # fmt: skip
def test_conditions_and_not_the_phase_tell_that_a_job_is_finished(
    status: dict[str, Any], is_finished: bool
) -> None:
    assert finished(job(status)) is is_finished
    assert settled(job(status)) is is_finished


# --- the rest ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observed", "wanted"),
    [
        (Observed(job()), False),
        (Observed(job(), view(**INITIALIZING)), False),
        (Observed(job(), view(**RUNNING)), True),
        (Observed(job(), view(**SUCCEEDED)), True),
        (Observed(job(), view(OTHER_UID, **RUNNING)), False),
        (Observed(job(ended("Failed")), view(**RUNNING)), False),
    ],
    ids=["no-ray-job", "no-driver", "running", "ended", "foreign", "finished"],
)
def test_the_driver_is_asked_where_it_has_something_to_say(
    observed: Observed, wanted: bool
) -> None:
    assert wants_report(observed) is wanted


def test_a_refusal_of_the_api_server_stands_in_the_status() -> None:
    status = refused(job(), "403: exceeded quota: pods", NOW)
    assert status["phase"] == "Pending"
    assert {condition["reason"] for condition in status["conditions"]} == {"Refused"}
    assert status["conditions"][0]["message"] == "403: exceeded quota: pods"


def test_a_job_is_taken_as_the_api_server_has_it() -> None:
    view_of_it = job({"phase": "Pending"}, generation=4, resourceVersion="77")
    assert (view_of_it.namespace, view_of_it.name, view_of_it.uid) == (NAMESPACE, "job", UID)
    assert (view_of_it.generation, view_of_it.resource_version) == (4, "77")
    assert not view_of_it.deleting
    assert parse(view_of_it.document).metadata.namespace == NAMESPACE


def test_a_job_may_use_any_step_that_the_specification_knows() -> None:
    body = job_body()
    body["spec"]["steps"] = [model_step()]
    assert len(done(Observed(job_view(body))).create) == 2


def test_the_names_follow_from_the_job_alone() -> None:
    assert names_of(job()) == names_of(job({"phase": "Running"}, resourceVersion="5"))
    assert names_of(job()).ray_job == "job-1"
