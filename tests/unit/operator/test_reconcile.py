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
from batchinference_operator.reconcile.beginning import names_of, refused, render
from batchinference_operator.reconcile.ending import POLL_SECONDS
from batchinference_operator.reconcile.following import REPORT_GRACE_SECONDS, wants_report
from batchinference_operator.reconcile.looks import (
    IDLE_SECONDS,
    NO_PODS_SECONDS,
    REST_SECONDS,
    SILENT_SECONDS,
)
from batchinference_operator.reconcile.model import Actions, JobView, Observed
from batchinference_operator.reconcile.reconcile import finished, reconcile, settled
from batchinference_operator.reconcile.settings import Settings
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.pods import PodView
from support.documents.minimal import model_step
from support.operator.objects import (
    FAILED,
    INITIALIZING,
    NAMESPACE,
    OTHER_UID,
    RUNNING,
    SETTINGS,
    SUCCEEDED,
    UID,
    job_body,
    pod_body,
    ray_job_body,
    report,
    waiting,
)

NOW = datetime(2026, 3, 1, 12, 30, 0, tzinfo=UTC)
ENDED = datetime(2026, 3, 1, 12, 10, 0, tzinfo=UTC)


def job(status: dict[str, Any] | None = None, **metadata: Any) -> JobView:
    return JobView.of(job_body(status=status, **metadata))


def view(owner_uid: str | None = UID, **status: Any) -> RayJobView:
    return RayJobView.of(ray_job_body(owner_uid=owner_uid, **status))


def ended(kind: str) -> dict[str, Any]:
    """A status that says the job is at its end, for some time now."""
    over = {"phase": "Succeeded", "completionTime": "2026-03-01T12:10:00Z"}
    condition = {"type": kind, "status": "True", "lastTransitionTime": over["completionTime"]}
    return {**over, "conditions": [condition]}


def done(observed: Observed, now: datetime = NOW) -> Actions:
    return reconcile(observed, SETTINGS, now)


def begun(status: dict[str, Any] | None = None, **metadata: Any) -> JobView:
    """A job whose first RayJob was made."""
    planned = done(Observed(job())).status
    return job({**(planned or {}), **(status or {})}, **metadata)


def followed(ray_job: RayJobView | None = None, **seen: Any) -> Observed:
    """A job whose RayJob was made, and what is seen of it. Its token was made already."""
    return looked_at(Observed(begun(), {"job-1": view()}), ray_job, **seen)


def looked_at(before: Observed, ray_job: RayJobView | None, **seen: Any) -> Observed:
    """What is seen at the next look."""
    known = replace(before.job, status=done(before).status or before.job.status)
    return Observed(known, {} if ray_job is None else {ray_job.name: ray_job}, **seen)


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
    assert (phase(actions), reason(actions)) == ("Planning", "Planning")
    assert actions.again_after == POLL_SECONDS
    assert (actions.remove, actions.release) == ((), ())


def test_its_objects_are_in_its_namespace_and_die_with_it() -> None:
    for body in done(Observed(job())).create:
        (owner,) = body["metadata"]["ownerReferences"]
        assert body["metadata"]["namespace"] == NAMESPACE
        assert (owner["uid"], owner["controller"]) == (UID, True)


def test_the_operators_defaults_reach_the_ray_job() -> None:
    *_, ray_job = render(job(), names_of(job(), 1), SETTINGS)
    assert "registry/pipeline:1" in yaml.safe_dump(ray_job)


def test_a_job_whose_ray_job_was_never_seen_is_started_again() -> None:
    first = done(Observed(job()))
    actions = done(Observed(begun()))
    assert actions.create == first.create
    assert actions.status is None


def test_suspension_continues_after_a_lost_status_write() -> None:
    """By now a quota may refuse to take its RayJob again."""
    first = done(Observed(begun(), {"job-1": view(**INITIALIZING)}))
    again = done(Observed(job(), {"job-1": view(**INITIALIZING)}))
    assert [body["kind"] for body in again.create] == ["Secret"]
    assert (again.create, again.status) == (first.create, first.status)


def test_its_ray_job_gets_the_token_as_soon_as_it_is_seen() -> None:
    actions = done(Observed(begun(), {"job-1": view(**INITIALIZING)}))
    (secret,) = actions.create
    (owner,) = secret["metadata"]["ownerReferences"]
    seen = view(**INITIALIZING)
    assert (secret["kind"], secret["metadata"]["namespace"]) == ("Secret", NAMESPACE)
    assert (owner["kind"], owner["name"], owner["uid"]) == ("RayJob", seen.name, seen.uid)
    assert actions.status is not None
    assert actions.status["rayJobName"] == seen.name


def test_token_secret_has_the_name_in_the_ray_job() -> None:
    (secret,) = done(Observed(begun(), {"job-1": view(**INITIALIZING)})).create
    *_, ray_job = done(Observed(job())).create
    asked = ray_job["spec"]["rayClusterSpec"]["authOptions"]["secretName"]
    assert secret["metadata"]["name"] == asked


def test_the_token_is_made_once_the_status_says_so() -> None:
    assert done(followed(view(**INITIALIZING))).create == ()


def test_it_is_made_again_while_a_pod_misses_a_secret() -> None:
    """The one that was made may have gone with a RayJob that somebody has deleted."""
    pod = PodView.of(pod_body("job-1-head", **waiting("CreateContainerConfigError", "not found")))
    actions = done(followed(view(**INITIALIZING), pods=(pod,)))
    assert [body["kind"] for body in actions.create] == ["Secret"]


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
def test_invalid_spec_creates_nothing_and_fails(
    spec: dict[str, Any],
) -> None:
    body = job_body()
    view_of_it = JobView.of({**body, "spec": {**body["spec"], **spec} if spec else {}})
    with pytest.raises(SpecError) as refusal:
        render(view_of_it, names_of(view_of_it, 1), SETTINGS)
    actions = done(Observed(view_of_it))
    assert actions.create == ()
    assert (phase(actions), reason(actions)) == ("Failed", "InvalidSpec")
    assert message(actions) == str(refusal.value)
    assert actions.again_after == 0


def test_a_job_without_any_image_is_invalid_and_says_what_to_set() -> None:
    bare = Settings(Cluster(), SETTINGS.token_key)
    actions = reconcile(Observed(job()), bare, NOW)
    assert actions.create == ()
    assert "spec.cluster.image" in message(actions)


# --- the token --------------------------------------------------------------------------


def token_in(job: JobView, settings: Settings = SETTINGS) -> str:
    (secret,) = reconcile(Observed(job, {"job-1": view(job.uid)}), settings, NOW).create
    (token,) = secret["stringData"].values()
    return str(token)


def test_token_of_a_job_is_stable() -> None:
    assert token_in(begun()) == token_in(begun(resourceVersion="99")) == SETTINGS.token(UID)


def test_the_token_is_another_for_another_job_and_for_another_key() -> None:
    other_key = Settings(SETTINGS.defaults, b"another key of sixteen bytes")
    tokens = {token_in(begun()), token_in(begun(uid=OTHER_UID)), token_in(begun(), other_key)}
    assert len(tokens) == 3


def test_the_token_stands_in_the_secret_alone() -> None:
    token = SETTINGS.token(UID)
    first, second = Observed(job()), Observed(begun(), {"job-1": view(**INITIALIZING)})
    made = [*done(first).create, *done(second).create]
    assert [body["kind"] for body in made if token in repr(body)] == ["Secret"]


# --- a job with a RayJob ----------------------------------------------------------------


def test_a_ray_job_that_is_getting_ready_is_looked_at_now_and_then() -> None:
    actions = done(followed(view(**INITIALIZING)))
    assert (phase(actions), reason(actions)) == ("Starting", "Starting")
    assert actions.status is not None
    assert actions.status["rayJobName"] == "job-1"
    assert actions.again_after == IDLE_SECONDS


def test_a_ray_job_that_waits_for_kuberay_is_looked_at_seldom() -> None:
    seen = replace(followed(view(**{**INITIALIZING, "rayClusterName": ""})), watched=True)
    assert done(seen).again_after == REST_SECONDS


def test_ray_job_without_pods_is_requeued_until_the_reason_is_known() -> None:
    seen = replace(followed(view(**INITIALIZING)), watched=True)
    assert done(seen).again_after == NO_PODS_SECONDS
    with_pod = replace(seen, pods=(PodView.of(pod_body()),))
    assert done(with_pod).again_after == IDLE_SECONDS


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
    actions = done(followed(view(**RUNNING), report=told, driver_reached=True))
    assert phase(actions) == expected
    assert actions.again_after == POLL_SECONDS


def test_silent_driver_is_asked_less_often_and_job_continues() -> None:
    running = followed(view(**RUNNING), report=report(rows=3), driver_reached=True)
    actions = done(looked_at(running, view(**RUNNING)))
    assert (phase(actions), reason(actions)) == ("Running", "DriverSilent")
    assert actions.again_after == SILENT_SECONDS


def test_a_pod_in_trouble_shows_in_the_status() -> None:
    pod = PodView.of(pod_body("job-1-worker", **waiting("ImagePullBackOff", "no such image")))
    actions = done(followed(view(**INITIALIZING), pods=(pod,)))
    assert (phase(actions), reason(actions)) == ("Pending", "ImagePull")
    assert message(actions) == "pod job-1-worker: no such image"


def test_what_events_say_of_a_pod_shows_in_the_status() -> None:
    pod = PodView.of(pod_body("job-1-worker", **waiting("ContainerCreating")))
    words = {"job-1-worker": "secret not found"}
    actions = done(followed(view(**INITIALIZING), pods=(pod,), words=words))
    assert message(actions) == "pod job-1-worker: secret not found"


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
@pytest.mark.parametrize("ray_job", [RUNNING, SUCCEEDED], ids=["still-running", "ended"])
def test_the_drivers_last_report_ends_the_job(state: JobState, ray_job: dict[str, Any]) -> None:
    last = report(state, rows=9)
    actions = done(followed(view(**ray_job), report=last, driver_reached=True))
    assert actions.status is not None
    assert finished(replace(job(), status=actions.status))
    assert actions.status["completionTime"] == "2026-03-01T12:09:00Z"
    assert actions.again_after == 0


def test_a_ray_job_that_kuberay_refuses_fails_the_job_at_once() -> None:
    refused_one = view(jobDeploymentStatus="ValidationFailed", message="spec is invalid")
    actions = done(followed(refused_one))
    assert (phase(actions), reason(actions)) == ("Failed", "InvalidSpec")
    assert message(actions) == "spec is invalid"
    assert actions.again_after == 0


# --- the report of a RayJob that has ended ----------------------------------------------


@pytest.mark.parametrize("seconds", [0, 1, REPORT_GRACE_SECONDS - 1])
def test_the_last_report_is_asked_for_again_within_the_grace(seconds: float) -> None:
    actions = done(followed(view(**SUCCEEDED)), ENDED + timedelta(seconds=seconds))
    assert (phase(actions), reason(actions)) == ("Finalizing", "Finalizing")
    assert actions.again_after == POLL_SECONDS


@pytest.mark.parametrize("seconds", [REPORT_GRACE_SECONDS, REPORT_GRACE_SECONDS + 1, 86_400])
def test_after_the_grace_the_job_ends_without_the_report(seconds: float) -> None:
    actions = done(followed(view(**SUCCEEDED)), ENDED + timedelta(seconds=seconds))
    assert phase(actions) == "Succeeded"
    assert "could not be read" in message(actions)
    assert actions.again_after == 0


def test_the_grace_counts_in_any_time_zone() -> None:
    ray_job = view(**{**SUCCEEDED, "endTime": "2026-03-01T14:10:00+02:00"})
    east = timezone(timedelta(hours=9))
    within = (ENDED + timedelta(seconds=30)).astimezone(east)
    beyond = (ENDED + timedelta(seconds=90)).astimezone(east)
    assert phase(done(followed(ray_job), within)) == "Finalizing"
    assert phase(done(followed(ray_job), beyond)) == "Succeeded"


def test_times_are_written_in_utc() -> None:
    east = datetime(2026, 3, 1, 21, 30, 0, tzinfo=timezone(timedelta(hours=9)))
    status = done(Observed(job()), east).status
    assert status is not None
    times = {condition["lastTransitionTime"] for condition in status["conditions"]}
    assert times == {"2026-03-01T12:30:00Z"}


def test_a_clock_behind_kuberays_only_lengthens_the_grace() -> None:
    actions = done(followed(view(**SUCCEEDED)), ENDED - timedelta(seconds=30))
    assert phase(actions) == "Finalizing"


@pytest.mark.parametrize(
    ("ray_job", "reached"),
    [
        (SUCCEEDED, True),
        ({**SUCCEEDED, "endTime": None}, False),
        ({**FAILED, "jobStatus": ""}, False),
    ],
    ids=["the-driver-left-none", "kuberay-gives-no-end", "no-driver-ever"],
)
def test_there_is_no_grace_where_nothing_can_be_waited_for(
    ray_job: dict[str, Any], reached: bool
) -> None:
    actions = done(followed(view(**ray_job), driver_reached=reached), ENDED)
    assert phase(actions) in {"Succeeded", "Failed"}


# --- a RayJob that is gone, or somebody else's ------------------------------------------


def test_deleted_ray_job_fails_the_job() -> None:
    running = followed(view(**RUNNING), report=report(rows=3), driver_reached=True)
    actions = done(looked_at(running, None))
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
@pytest.mark.parametrize("planned", [False, True], ids=["seen-before", "seen-after"])
def test_a_foreign_ray_job_is_waited_out(
    owner_uid: str | None, words: str, status: dict[str, Any], planned: bool
) -> None:
    actions = done(Observed(begun() if planned else job(), {"job-1": view(owner_uid, **status)}))
    assert (actions.remove, actions.create, actions.release) == ((), (), ())
    assert (phase(actions), reason(actions)) == ("Pending", "NameTaken")
    assert words in message(actions)
    assert actions.again_after == POLL_SECONDS


def test_the_job_starts_when_the_foreign_ray_job_is_gone() -> None:
    held_up = done(Observed(job(), {"job-1": view(OTHER_UID)})).status
    assert len(done(Observed(job(held_up))).create) == 2


# --- a job at its end -------------------------------------------------------------------


def test_deleting_job_gets_no_actions() -> None:
    going = job(deletionTimestamp="2026-03-01T12:30:00Z")
    for ray_job in (view(**RUNNING), view(OTHER_UID), view(**SUCCEEDED)):
        observed = Observed(going, {"job-1": ray_job})
        assert done(observed) == Actions()
        assert not wants_report(observed)


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
        (Observed(begun()), False),
        (Observed(begun(), {"job-1": view(**INITIALIZING)}), False),
        (Observed(begun(), {"job-1": view(**RUNNING)}), True),
        (Observed(begun(), {"job-1": view(**SUCCEEDED)}), True),
        (Observed(begun(), {"job-1": view(OTHER_UID, **RUNNING)}), False),
        (Observed(job(), {"job-1": view(**RUNNING)}), False),
        (Observed(job(ended("Failed")), {"job-1": view(**RUNNING)}), False),
    ],
    ids=["no-ray-job", "no-driver", "running", "ended", "foreign", "no-attempt", "finished"],
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
    assert len(done(Observed(JobView.of(body))).create) == 2


def test_the_names_follow_from_the_job_and_the_attempt_alone() -> None:
    assert names_of(job(), 1) == names_of(job({"phase": "Running"}, resourceVersion="5"), 1)
    assert [names_of(job(), attempt).ray_job for attempt in (1, 2)] == ["job-1", "job-2"]
