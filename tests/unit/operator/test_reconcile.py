"""The actions of one reconcile, for all possible observations of a job."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import yaml

from batchinference import rendering
from batchinference.rendering import EVICTABLE, NODE_TYPE_LABEL
from batchinference.rendering.pods import PROTECTION
from batchinference.spec import SpecError
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.admission_queue import (
    AdmissionDecision,
    Concurrency,
    queue_entry,
)
from batchinference_operator.reconcile.attempt_objects import create_actions
from batchinference_operator.reconcile.cluster_tokens import cluster_tokens
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.create_errors import status_after_create_error
from batchinference_operator.reconcile.driver_silence import (
    DRIVER_START_SECONDS,
    REPORT_GRACE_SECONDS,
    must_poll_driver,
)
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.kuberay_silence import KUBERAY_SECONDS
from batchinference_operator.reconcile.kueue import rejection_hint
from batchinference_operator.reconcile.observed_and_actions import Actions, DriverAnswer, Observed
from batchinference_operator.reconcile.ray_job_deletion import ORPHAN_SECONDS
from batchinference_operator.reconcile.reconcile import reconcile
from batchinference_operator.reconcile.requeue import (
    IDLE_SECONDS,
    NO_PODS_SECONDS,
    POLL_SECONDS,
    WATCHED_SECONDS,
)
from batchinference_operator.reconcile.spec_check import parse_with_defaults
from batchinference_operator.status.conditions import find_condition
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import to_rfc3339
from plugins.messages import Messages
from support.operator.objects import (
    CONFIG,
    FAILED,
    INITIALIZING,
    NAMESPACE,
    OTHER_UID,
    RUNNING,
    SUCCEEDED,
    UID,
    job_body,
    pod_body,
    ray_job_body,
    report,
    waiting,
)
from support.operator.reconcile_loop import ReconcileLoop

NOW = datetime(2026, 3, 1, 12, 30, 0, tzinfo=UTC)
ENDED = datetime(2026, 3, 1, 12, 10, 0, tzinfo=UTC)


def job(status: dict[str, Any] | None = None, **metadata: Any) -> JobView:
    return JobView.of(job_body(status=status, **metadata))


def view(owner_uid: str | None = UID, **status: Any) -> RayJobView:
    return RayJobView.of(ray_job_body(owner_uid=owner_uid, **status))


def ended(kind: str) -> dict[str, Any]:
    """Return a status with a condition that ended the job 20 minutes ago."""
    time = "2026-03-01T12:10:00Z"
    condition = {"type": kind, "status": "True", "lastTransitionTime": time}
    return {"phase": "Succeeded", "completionTime": time, "conditions": [condition]}


def act(observed: Observed, now: datetime = NOW) -> Actions:
    return reconcile(observed, CONFIG, now)


def planned_job(**metadata: Any) -> JobView:
    """Return a job whose first attempt is in the status."""
    return job(act(Observed(job())).status, **metadata)


def observe_started(ray_job: RayJobView | None = None, **seen: Any) -> Observed:
    """Return a job with a RayJob whose token secret exists."""
    return observe_next(Observed(planned_job(), {"job-1": view()}), ray_job, **seen)


def observe_next(before: Observed, ray_job: RayJobView | None, **seen: Any) -> Observed:
    """Return the next observation, after the status of a reconcile was written."""
    known = replace(before.job, status=act(before).status or before.job.status)
    return Observed(known, {} if ray_job is None else {ray_job.name: ray_job}, **seen)


def ready(actions: Actions) -> dict[str, Any]:
    """Return the condition Ready of the status."""
    assert actions.status is not None
    condition = find_condition(actions.status, "Ready")
    assert condition
    return condition


def reason(actions: Actions) -> str:
    return str(ready(actions)["reason"])


def message(actions: Actions) -> str:
    return str(ready(actions)["message"])


def phase(actions: Actions) -> str:
    assert actions.status is not None
    return str(actions.status["phase"])


def test_new_job_gets_config_map_and_ray_job_that_it_owns() -> None:
    actions = act(Observed(job()))
    assert [body["kind"] for body in actions.create] == ["ConfigMap", "RayJob"]
    assert (phase(actions), reason(actions)) == ("Planning", "Planning")
    assert actions.requeue_after == POLL_SECONDS
    assert (actions.delete_ray_jobs, actions.release_clusters) == ((), ())
    for body in actions.create:
        (owner,) = body["metadata"]["ownerReferences"]
        assert body["metadata"]["namespace"] == NAMESPACE
        assert (owner["uid"], owner["controller"]) == (UID, True)


def test_defaults_of_the_operator_are_rendered_or_named_if_missing() -> None:
    *_, made = create_actions(job(), job().names(1), CONFIG, NOW).create
    assert "registry/pipeline:1" in yaml.safe_dump(made)
    without_image = Config(PlatformDefaults(), CONFIG.token_key)
    actions = reconcile(Observed(job()), without_image, NOW)
    assert actions.create == ()
    assert "spec.cluster.image" in message(actions)


def test_token_secret_is_created_when_the_ray_job_is_observed() -> None:
    seen = view(**INITIALIZING)
    actions = act(Observed(planned_job(), {"job-1": seen}))
    (secret,) = actions.create
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (secret["kind"], secret["metadata"]["namespace"]) == ("Secret", NAMESPACE)
    assert (owner["kind"], owner["name"], owner["uid"]) == ("RayJob", seen.name, seen.uid)
    assert actions.status is not None
    assert actions.status["rayJobName"] == seen.name
    *_, ray_job = act(Observed(job())).create
    auth = ray_job["spec"]["rayClusterSpec"]["authOptions"]
    assert secret["metadata"]["name"] == auth["secretName"]


def test_token_secret_is_created_again_only_if_a_pod_misses_it() -> None:
    """The Secret may have been deleted together with an earlier RayJob."""
    assert act(observe_started(view(**INITIALIZING))).create == ()
    pod = PodView.of(pod_body("job-1-head", **waiting("CreateContainerConfigError", "not found")))
    actions = act(observe_started(view(**INITIALIZING), pods=(pod,)))
    assert [body["kind"] for body in actions.create] == ["Secret"]


@pytest.mark.parametrize(
    ("annotations", "protected"),
    [
        ({}, True),
        ({"karpenter.sh/do-not-disrupt": "false"}, True),
        ({EVICTABLE: "true"}, False),
        ({EVICTABLE: "false"}, True),
    ],
)
def test_head_is_protected_from_eviction(annotations: dict[str, str], *, protected: bool) -> None:
    loop = ReconcileLoop()
    loop.spec["cluster"] = {"annotations": annotations}
    *_, ray_job = loop.reconcile().create
    cluster = ray_job["spec"]["rayClusterSpec"]
    head, worker = (
        each["template"]["metadata"]
        for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    )
    assert head["annotations"] == {**(PROTECTION if protected else {}), **annotations}
    assert worker.get("annotations", {}) == annotations
    loop.ray_job["spec"] = ray_job["spec"]
    budgets = [body for body in loop.reconcile().create if body["kind"] != "Secret"]
    assert len(budgets) == protected
    for budget in budgets:
        (owner,) = budget["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("RayJob", "job-1")
        selected = budget["spec"]["selector"]["matchLabels"]
        assert selected.items() <= {**head["labels"], NODE_TYPE_LABEL: "head"}.items()
        assert NODE_TYPE_LABEL in selected
        assert budget["spec"]["minAvailable"] == 1


def test_refusal_by_the_default_queue_of_kueue_names_the_fix() -> None:
    """Kueue asks for an annotation that the user cannot set."""
    kueue = "403: a kueue managed job should only use autoscaling when workload slicing is enabled"
    to_queue, gate = "Set spec.cluster.queueName to a LocalQueue", "ElasticJobsViaWorkloadSlices"
    for message, spec, default, hint in (
        (kueue, {}, None, to_queue),
        (kueue, {}, "of-the-platform", gate),
        (kueue, {"cluster": {"queueName": "gpu"}}, None, gate),
        ("403: autoscaling is not supported for a MultiKueue-managed kueue job", {}, None, None),
        ("403: exceeded quota", {}, None, None),
        ("403: exceeded quota", {"cluster": {"queueName": "gpu"}}, None, None),
    ):
        queues, own = ". There is the LocalQueue gpu", replace(job(), spec=spec)
        added = rejection_hint(own, message, queues, default)
        status = status_after_create_error(own, f"{message}{added}", None, NOW) or {}
        shown = status["conditions"][0]["message"]
        assert shown.startswith(message)
        assert [one for one in (to_queue, gate) if one in shown] == ([hint] if hint else [])
        assert shown.endswith(queues) is (hint == to_queue)


def test_a_corrected_spec_leaves_invalid_spec() -> None:
    loop = ReconcileLoop(priority=5)
    loop.allow(max_priority=3)
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Failed", "InvalidSpec")
    loop.reconcile()
    assert loop.phases == ["Failed"], "nothing has changed"
    loop.spec["priority"], loop.generation = 4, 2
    assert loop.reconcile().requeue_after == 0
    assert (loop.phase, "completionTime" in loop.status) == ("Pending", False)
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Failed", "InvalidSpec")
    loop.spec["priority"], loop.generation = 3, 3
    loop.reconcile()
    loop.reconcile()
    assert (loop.phase, loop.status["attempt"]) == ("Planning", 1)


def test_a_job_that_became_invalid_between_two_attempts_continues_when_corrected() -> None:
    loop = ReconcileLoop(retry={"maxAttempts": 3}, priority=3)
    loop.allow(max_priority=3)
    loop.run(rows=7)
    loop.fail("NodeLost")
    loop.spec["priority"], loop.generation = 5, 2
    loop.reconcile()
    loop.finalize_deletions()
    loop.reconcile(120)
    assert (loop.phase, loop.reason, loop.status["attempt"]) == ("Failed", "InvalidSpec", 1)
    before = loop.status
    loop.spec["priority"], loop.generation = 3, 3
    loop.reconcile()
    assert loop.phase == "Pending"
    for kept in ("attempts", "failedAttempts", "progress", "startTime"):
        assert loop.status[kept] == before[kept]
    loop.reconcile()
    assert (loop.phase, loop.status["attempt"], loop.status["failedAttempts"]) == ("Planning", 2, 1)


def test_an_admitted_attempt_whose_spec_became_invalid_is_not_recorded() -> None:
    """The status names the attempt before its objects are created."""
    loop = ReconcileLoop(priority=3)
    loop.allow(max_priority=3)
    loop.config = replace(loop.config, concurrency=Concurrency(total=1))
    loop.admission = AdmissionDecision(ahead=0, admitted=True)
    loop.reconcile()
    assert (loop.phase, loop.status["attempt"], loop.ray_jobs) == ("Planning", 1, {})
    loop.spec["priority"], loop.generation = 5, 2
    loop.reconcile()
    assert (loop.phase, loop.reason, "attempts" in loop.status) == ("Failed", "InvalidSpec", False)
    loop.spec["priority"], loop.generation = 2, 3
    loop.reconcile()
    assert loop.phase == "Pending"


def test_a_failed_attempt_is_not_corrected_by_a_change() -> None:
    loop = ReconcileLoop(retry={"maxAttempts": 1})
    loop.run()
    loop.fail("InvalidSpec")
    loop.generation = 2
    loop.reconcile()
    assert (loop.phase, loop.status["observedGeneration"]) == ("Failed", 2)


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
def test_invalid_spec_creates_nothing_and_fails(spec: dict[str, Any]) -> None:
    body = job_body()
    seen = JobView.of({**body, "spec": {**body["spec"], **spec} if spec else {}})
    with pytest.raises(SpecError) as refusal:
        rendering.attempt_objects(parse_with_defaults(seen, CONFIG)[0], seen.names(1), None)
    actions = act(Observed(seen))
    assert actions.create == ()
    assert (phase(actions), reason(actions)) == ("Failed", "InvalidSpec")
    assert message(actions) == "; ".join(str(refusal.value).splitlines())
    assert actions.requeue_after == 0


def token_in(job: JobView, settings: Config = CONFIG) -> str:
    (secret,) = reconcile(Observed(job, {"job-1": view(job.uid)}), settings, NOW).create
    (token,) = secret["stringData"].values()
    return str(token)


def test_token_depends_only_on_job_attempt_and_key() -> None:
    token = token_in(planned_job())
    assert (
        token
        == token_in(planned_job(resourceVersion="99"))
        == cluster_tokens(CONFIG, job(), "job-1")[0]
    )
    other_key = Config(CONFIG.defaults, b"another key of thirty-two bytes")
    others = {token_in(planned_job(uid=OTHER_UID)), token_in(planned_job(), other_key)}
    assert len({token} | others) == 3


def test_requeue_delay_of_a_starting_ray_job() -> None:
    seen = observe_started(view(**INITIALIZING))
    actions = act(seen)
    assert (phase(actions), reason(actions)) == ("Starting", "Starting")
    assert actions.status is not None
    assert actions.status["rayJobName"] == "job-1"
    assert actions.requeue_after == NO_PODS_SECONDS
    with_pod = replace(seen, pods=(PodView.of(pod_body()),))
    assert act(with_pod).requeue_after == IDLE_SECONDS
    without_cluster = observe_started(view(**{**INITIALIZING, "rayClusterName": ""}))
    assert act(without_cluster).requeue_after == WATCHED_SECONDS


def test_driver_is_not_reported_unreachable_in_its_first_minute() -> None:
    """The minute begins with the driver, and not with KubeRay's `startTime`, at which KubeRay
    accepted the RayJob."""
    loop = ReconcileLoop()
    loop.start()
    accepted = to_rfc3339(loop.now)
    loop.reconcile(480)
    began = {"startTime": accepted, "rayJobInfo": {"startTime": to_rfc3339(loop.now)}}
    loop.set_kuberay_status(**RUNNING, **began)
    reasons = []
    for _ in range(3):
        loop.reconcile()
        reasons.append(loop.reason)
        loop.now += timedelta(seconds=DRIVER_START_SECONDS / 2)
    assert reasons == ["Starting", "Starting", "DriverSilent"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, ("Starting", "Starting")), (DRIVER_START_SECONDS, ("Running", "DriverSilent"))],
    ids=["late", "lost"],
)
def test_driver_that_starts_again_is_not_silent_at_once(
    seconds: float, expected: tuple[str, str]
) -> None:
    rows = report(JobState.RUNNING, rows=5)
    running = observe_started(view(**RUNNING), answer=DriverAnswer(True, rows))
    began = {"rayJobInfo": {"startTime": to_rfc3339(NOW - timedelta(seconds=seconds))}}
    again = act(observe_next(running, view(**RUNNING, **began), answer=DriverAnswer(True)))
    assert (phase(again), reason(again)) == expected


@pytest.mark.parametrize("seconds", [-30, 0, 1, REPORT_GRACE_SECONDS - 1])
def test_final_report_is_polled_within_the_grace_period(seconds: float) -> None:
    actions = act(observe_started(view(**SUCCEEDED)), ENDED + timedelta(seconds=seconds))
    assert (phase(actions), reason(actions)) == ("Finalizing", "Finalizing")
    assert actions.requeue_after == POLL_SECONDS


@pytest.mark.parametrize("seconds", [REPORT_GRACE_SECONDS, REPORT_GRACE_SECONDS + 1, 86_400])
def test_job_ends_without_report_after_the_grace_period(seconds: float, messages: Messages) -> None:
    actions = act(observe_started(view(**SUCCEEDED)), ENDED + timedelta(seconds=seconds))
    assert phase(actions) == "Succeeded"
    messages.check(message(actions))
    assert actions.requeue_after == 0


def test_grace_period_counts_in_any_time_zone() -> None:
    seen = observe_started(view(**{**SUCCEEDED, "endTime": "2026-03-01T14:10:00+02:00"}))
    for seconds, expected in ((30, "Finalizing"), (90, "Succeeded")):
        now = (ENDED + timedelta(seconds=seconds)).astimezone(timezone(timedelta(hours=9)))
        assert phase(act(seen, now)) == expected, seconds


def test_times_are_written_in_utc() -> None:
    east = datetime(2026, 3, 1, 21, 30, 0, tzinfo=timezone(timedelta(hours=9)))
    status = act(Observed(job()), east).status
    assert status is not None
    times = {condition["lastTransitionTime"] for condition in status["conditions"]}
    assert times == {"2026-03-01T12:30:00Z"}


@pytest.mark.parametrize(
    ("ray_job", "reached"),
    [
        (SUCCEEDED, True),
        ({**SUCCEEDED, "endTime": None}, False),
        ({**FAILED, "jobStatus": ""}, False),
    ],
    ids=["driver-left-no-report", "no-end-time", "driver-never-started"],
)
def test_no_grace_period_without_a_report_to_wait_for(
    ray_job: dict[str, Any], reached: bool
) -> None:
    actions = act(observe_started(view(**ray_job), answer=DriverAnswer(reached)), ENDED)
    assert phase(actions) in {"Succeeded", "Failed"}


@pytest.mark.parametrize("owner_uid", [OTHER_UID, None], ids=["former-job", "no-owner"])
@pytest.mark.parametrize("status", [INITIALIZING, RUNNING, SUCCEEDED])
@pytest.mark.parametrize("planned", [False, True], ids=["new", "planned"])
def test_foreign_ray_job_blocks_the_start_until_it_is_deleted(
    owner_uid: str | None, messages: Messages, status: dict[str, Any], planned: bool
) -> None:
    foreign = {"job-1": view(owner_uid, **status)}
    actions = act(Observed(planned_job() if planned else job(), foreign))
    assert (actions.delete_ray_jobs, actions.create, actions.release_clusters) == ((), (), ())
    assert (phase(actions), reason(actions)) == ("Pending", "NameTaken")
    messages.check(message(actions))
    assert actions.requeue_after == POLL_SECONDS
    assert len(act(Observed(job(actions.status))).create) == 2


def test_status_says_if_kuberay_does_not_delete_the_ray_job_that_blocks_the_start() -> None:
    deleted = replace(view(OTHER_UID, **RUNNING), deleted_at=to_rfc3339(NOW))
    times = (NOW + timedelta(seconds=KUBERAY_SECONDS + more) for more in (-1, 0))
    reasons = [reason(act(Observed(job(), {"job-1": deleted}), time)) for time in times]
    assert reasons == ["NameTaken", "KubeRayNotResponding"]


def test_deleting_job_gets_no_actions() -> None:
    going = job(deletionTimestamp="2026-03-01T12:30:00Z")
    for ray_job in (view(OTHER_UID), view(**SUCCEEDED)):
        observed = Observed(going, {"job-1": ray_job})
        assert act(observed) == Actions()
        assert not must_poll_driver(observed)


def test_ray_job_of_a_deleted_job_that_a_finalizer_keeps_is_deleted() -> None:
    observed = Observed(job(deletionTimestamp=to_rfc3339(NOW)), {"job-1": view(**RUNNING)})
    assert act(observed, NOW + timedelta(seconds=299)) == Actions(requeue_after=1)
    actions = act(observed, NOW + timedelta(seconds=ORPHAN_SECONDS))
    assert [one.name for one in actions.delete_ray_jobs] == ["job-1"]
    assert (actions.status, actions.requeue_after) == (None, ORPHAN_SECONDS)


def test_ray_job_that_is_being_deleted_late_is_left_to_kuberay() -> None:
    deleted = replace(view(**RUNNING), deleted_at=to_rfc3339(NOW + timedelta(seconds=290)))
    pods = (PodView.of(pod_body()),)
    observed = Observed(job(deletionTimestamp=to_rfc3339(NOW)), {"job-1": deleted}, pods)
    deletions = [act(observed, NOW + timedelta(seconds=n)).delete_ray_jobs for n in (400, 590)]
    assert deletions == [(), (deleted,)]


@pytest.mark.parametrize(
    ("status", "expected"),
    [({}, False), ({"phase": "Succeeded"}, False), (ended("Complete"), True),
     (ended("Failed"), True), (ended("Reconciling"), False)],
    ids=["none", "phase-alone", "complete", "failed", "reconciling"],
)  # fmt: skip
def test_job_is_finished_by_conditions_not_by_phase(status: dict[str, Any], expected: bool) -> None:
    assert job(status).finished is expected
    assert job(status).terminal is expected


@pytest.mark.parametrize(
    ("observed", "wanted"),
    [
        (Observed(planned_job()), False),
        (Observed(planned_job(), {"job-1": view(**INITIALIZING)}), False),
        (Observed(planned_job(), {"job-1": view(**RUNNING)}), True),
        (Observed(planned_job(), {"job-1": view(**SUCCEEDED)}), True),
        (Observed(planned_job(), {"job-1": view(OTHER_UID, **RUNNING)}), False),
        (Observed(job(), {"job-1": view(**RUNNING)}), False),
        (Observed(job(ended("Failed")), {"job-1": view(**RUNNING)}), False),
    ],
    ids=["no-ray-job", "no-driver", "running", "ended", "foreign", "no-attempt", "finished"],
)
def test_only_a_started_driver_is_polled(observed: Observed, wanted: bool) -> None:
    assert must_poll_driver(observed) is wanted


@pytest.mark.parametrize(
    ("controller", "runs"),
    [(None, True), ("batchinference.dev/operator", True), ("kueue.x-k8s.io/multikueue", False)],
)
def test_a_job_of_another_controller_is_ignored(controller: str | None, runs: bool) -> None:
    """The other controller writes its status, so nothing in the status is acted on."""
    spec = job_body()["spec"] | ({"managedBy": controller} if controller else {})
    waiting, config = replace(job(), spec=spec), replace(CONFIG, concurrency=Concurrency(total=1))
    assert bool(reconcile(Observed(waiting), CONFIG, NOW).create) is runs
    entry = queue_entry(waiting, config.defaults)
    assert (entry.waiting, entry.running) == (runs, False)
    finished = replace(waiting.with_status(ended("Complete")), generation=2)
    assert (reconcile(Observed(finished), CONFIG, NOW) == Actions()) is not runs


def test_names_depend_only_on_job_and_attempt() -> None:
    assert job().names(1) == job({"phase": "Running"}, resourceVersion="5").names(1)
    assert [job().names(attempt).ray_job for attempt in (1, 2)] == ["job-1", "job-2"]
