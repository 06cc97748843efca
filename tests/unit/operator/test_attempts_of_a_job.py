"""The attempts of a job: when one starts, what the status records, and when it is retried."""

from __future__ import annotations

import copy
import tracemalloc
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from batchinference.rendering import Names
from batchinference.spec import parse_one
from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.admission_queue import AdmissionDecision
from batchinference_operator.reconcile.requeue import POLL_SECONDS
from batchinference_operator.status.attempts import (
    MAX_ATTEMPTS,
    add_attempt,
    end_attempt,
    failed_attempts,
    remove_attempt,
)
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.timestamps import to_rfc3339
from support.operator.objects import (
    CREATED,
    OTHER_UID,
    RUNNING,
    SUCCEEDED,
    UID,
    owner,
    pod_body,
    ray_job_body,
)
from support.operator.reconcile_loop import ReconcileLoop

END = "2026-03-01T12:00:00Z"
AT_ONCE = {"maxAttempts": 3, "backoff": {"initial": "0s"}}


def failed_once(**retry: object) -> ReconcileLoop:
    """Return a job whose first attempt failed because its node was lost."""
    loop = ReconcileLoop(retry={**AT_ONCE, **retry})
    loop.lose()
    return loop


def test_successful_attempt_is_recorded_from_plan_to_end(loop: ReconcileLoop) -> None:
    loop.plan()
    assert loop.phase == "Planning"
    assert loop.status["attempts"] == [{"number": 1, "rayJobName": "job-1"}]
    assert (loop.status["attempt"], loop.status["rayJobName"]) == (1, "job-1")
    loop.reconcile()
    started = "2026-03-01T12:00:00Z"
    assert (loop.attempt["startTime"], loop.status["startTime"]) == (started, started)
    loop.set_kuberay_status(**RUNNING)
    loop.set_report(JobState.SUCCEEDED)
    loop.reconcile(60)
    assert loop.attempt["outcome"] == "Succeeded"
    assert loop.attempt["completionTime"] == "2026-03-01T12:01:00Z"
    assert "cause" not in loop.attempt
    assert loop.status["failedAttempts"] == 0


def test_ray_job_of_an_ended_attempt_that_is_created_again_is_deleted() -> None:
    """A late request of a former leader may create it while the next attempt runs."""
    loop = failed_once()
    loop.remove()
    loop.run()
    loop.ray_jobs["job-1"] = ray_job_body("job-1")
    assert [seen.name for seen in loop.reconcile().delete_ray_jobs] == ["job-1"]
    assert (loop.attempt["number"], loop.phase) == (2, "Running")
    assert loop.reconcile().delete_ray_jobs == (), "it is being deleted"


@pytest.mark.parametrize("phase", ["running", "retrying"])
def test_number_of_attempts_in_a_written_status_costs_no_memory(phase: str) -> None:
    """The operator runs the jobs of all users, and a user may be able to write a status."""
    loop = failed_once()
    loop.remove()
    if phase == "running":
        loop.run()
    loop.ray_jobs["job-1"] = ray_job_body("job-1")
    loop.status = {**loop.status, "attempt": 200_000}
    tracemalloc.start()
    actions = loop.reconcile()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "job-1" in [seen.name for seen in actions.delete_ray_jobs]
    assert peak < 1 << 20


@pytest.mark.parametrize(("state", "rows"), [(JobState.RUNNING, 4), (JobState.SUCCEEDED, 25)])
def test_attempt_has_the_rows_of_its_last_report(
    loop: ReconcileLoop, state: JobState, rows: int
) -> None:
    loop.run(rows=10)
    loop.set_report(state, rows=rows)
    loop.reconcile(2)
    assert loop.attempt["rows"] == rows


def test_transient_cause_is_recorded_and_retried() -> None:
    loop = failed_once()
    assert loop.attempt["outcome"] == "Failed"
    assert (loop.attempt["cause"], loop.attempt["message"]) == ("NodeLost", "node lost")
    assert loop.status["failedAttempts"] == 1
    assert (loop.phase, loop.reason) == ("Retrying", "Retrying")
    assert loop.message == "attempt 1 failed: NodeLost: node lost"
    assert "completionTime" not in loop.status


def test_failed_ray_job_is_removed_after_its_end_is_recorded() -> None:
    loop = ReconcileLoop(retry={"backoff": {"initial": "1h", "max": "1h"}})
    loop.run()
    actions = loop.fail()
    assert (actions.delete_ray_jobs, actions.requeue_after) == ((), 0)
    actions = loop.reconcile()
    assert [seen.name for seen in actions.delete_ray_jobs] == ["job-1"]
    assert actions.requeue_after == POLL_SECONDS, "the backoff does not delay the removal"


def test_next_attempt_waits_for_the_removal_and_has_its_own_token() -> None:
    loop = failed_once()
    loop.reconcile()
    for _ in range(3):
        actions = loop.reconcile(1000)
        assert (actions.create, actions.requeue_after) == ((), POLL_SECONDS), "KubeRay is away"
    loop.finalize_deletions()
    assert [body["metadata"]["name"] for body in loop.reconcile().create][-1] == "job-2"
    assert loop.phase == "Planning"
    (secret,) = loop.reconcile().create
    assert secret["metadata"]["name"] == Names("job", owner()["uid"], 2).secret
    assert secret["metadata"]["ownerReferences"][0]["name"] == "job-2"
    assert [attempt["number"] for attempt in loop.status["attempts"]] == [1, 2]


@pytest.mark.parametrize("change", ["job", "platform"])
def test_a_change_takes_effect_in_the_next_attempt(change: str) -> None:
    """The head of attempt 2 mounts a ConfigMap with the changed job, and its pods have changed."""
    loop = ReconcileLoop(retry={**AT_ONCE})
    loop.run()
    if change == "job":
        loop.spec |= {
            "errors": {"maxRows": 3},
            "cluster": {"image": "new:2", "workers": {"memory": "9Gi"}},
        }
        loop.generation = 2
    else:
        defaults = loop.config.defaults.model_copy(update={"image": "new:2"})
        loop.config = replace(loop.config, defaults=defaults)
    assert loop.reconcile().create == ()
    assert loop.attempt["generation"] == 1
    loop.lose()
    loop.remove()
    config_map, ray_job = loop.reconcile().create
    loop.reconcile()
    assert loop.attempt["generation"] == loop.generation
    cluster = ray_job["spec"]["rayClusterSpec"]
    head, workers = (one["template"]["spec"] for one in
                     (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]))  # fmt: skip
    mounted = [one.get("configMap") for one in head["volumes"]]
    assert {"name": config_map["metadata"]["name"]} in mounted
    file = parse_one(config_map["data"]["job.yaml"]).spec
    assert (file.errors.max_rows, file.cluster.image) == (3 if change == "job" else None, "new:2")
    (container,) = workers["containers"]
    memory = "9Gi" if change == "job" else "4Gi"
    assert (container["image"], container["resources"]["limits"]["memory"]) == ("new:2", memory)


def test_ended_ray_job_stays_and_its_cluster_is_released() -> None:
    loop = failed_once()
    loop.set_kuberay_status(jobStatus="FAILED", jobDeploymentStatus="Failed")
    actions = loop.reconcile()
    assert (actions.delete_ray_jobs, [seen.name for seen in actions.release_clusters]) == (
        (),
        ["job-1"],
    )
    loop.reconcile()
    assert set(loop.ray_jobs) == {"job-1", "job-2"}


def test_job_fails_when_no_attempt_is_left() -> None:
    loop = ReconcileLoop(retry={**AT_ONCE, "maxAttempts": 2})
    for _ in range(2):
        loop.lose()
        loop.remove()
    assert (loop.phase, loop.reason) == ("Failed", "NodeLost")
    assert loop.status["failedAttempts"] == 2
    assert len(loop.status["attempts"]) == 2


@pytest.mark.parametrize(
    ("on_cause", "cause", "phase"),
    [
        ({}, "BadInput", "Failed"),
        ({"BadInput": "Retry"}, "BadInput", "Retrying"),
        ({"NodeLost": "Fail"}, "NodeLost", "Failed"),
        ({"NodeLost": "Fail"}, "OutOfMemory", "Retrying"),
        ({}, "RayJobDeleted", "Failed"),
        ({"RayJobDeleted": "Retry"}, "RayJobDeleted", "Retrying"),
    ],
)
def test_on_cause_overrides_the_default(on_cause: dict[str, str], cause: str, phase: str) -> None:
    loop = ReconcileLoop(retry={"onCause": on_cause})
    loop.run()
    if cause == "RayJobDeleted":
        loop.ray_jobs.clear()
        loop.report = None
        loop.reconcile()
    else:
        loop.fail(cause)
    assert (loop.phase, loop.attempt["cause"]) == (phase, cause)


def test_foreign_ray_job_replaces_a_deleted_one(loop: ReconcileLoop) -> None:
    loop.run()
    loop.ray_job["metadata"]["ownerReferences"] = [owner(OTHER_UID)]
    loop.report = None
    loop.reconcile()
    assert loop.attempt["cause"] == "RayJobDeleted"
    assert "job-1" in loop.attempt["message"]
    assert loop.status["progress"]["rows"] == 10


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        ({}, [10, 20, 40, 80]),
        ({"initial": "0s"}, [0, 0, 0, 0]),
        ({"initial": "1m", "max": "150s"}, [60, 120, 150, 150]),
        ({"max": "5s"}, [5, 5, 5, 5]),
        ({"initial": "20m"}, [1200, 1200, 1200, 1200]),
    ],
    ids=["default", "none", "limited", "default-above-maximum", "above-the-default-maximum"],
)
def test_backoff_doubles_up_to_its_maximum(backoff: dict[str, str], waits: list[int]) -> None:
    loop = ReconcileLoop(retry={"maxAttempts": 5, "backoff": backoff})
    for wait in waits:
        loop.lose()
        assert loop.status["nextAttemptTime"] == to_rfc3339(loop.now + timedelta(seconds=wait))
        loop.remove(wait)
    assert loop.status["failedAttempts"] == 4


def test_retry_starts_at_next_attempt_time_despite_a_spec_change() -> None:
    loop = failed_once(backoff={"initial": "1m"})
    assert loop.status["nextAttemptTime"] == "2026-03-01T12:01:00Z"
    loop.remove()
    loop.generation = 2
    assert loop.reconcile(20).requeue_after == 40
    generations = {condition["observedGeneration"] for condition in loop.status["conditions"]}
    assert (loop.phase, loop.status["observedGeneration"], generations) == ("Retrying", 2, {2})
    assert loop.reconcile(39).create == ()
    assert loop.reconcile(1).create != ()
    assert "nextAttemptTime" not in loop.status


def test_clock_that_was_ahead_delays_the_next_attempt_at_most_by_the_maximum_backoff() -> None:
    loop = failed_once(backoff={"initial": "1m", "max": "5m"})
    loop.remove()
    loop.pods = (PodView.of(pod_body()),)
    assert loop.reconcile(-86_400).requeue_after == 300
    assert loop.status["nextAttemptTime"] == to_rfc3339(loop.now + timedelta(seconds=300))
    assert loop.reconcile(299).requeue_after == 1
    assert loop.reconcile(1).create != ()


def test_total_deadline_ends_the_backoff() -> None:
    loop = ReconcileLoop(deadlines={"total": "30s"}, retry={"backoff": {"initial": "1m"}})
    loop.lose()
    loop.remove()
    assert loop.reconcile().requeue_after == 30
    loop.reconcile(30)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")
    assert "nextAttemptTime" not in loop.status


def test_unrecorded_ray_job_belongs_to_the_attempt(loop: ReconcileLoop) -> None:
    loop.plan()
    loop.status = {}
    assert [body["kind"] for body in loop.reconcile().create] == ["Secret"]
    assert (loop.phase, loop.status["attempt"]) == ("Starting", 1)
    assert "startTime" in loop.attempt


def test_deleting_unrecorded_ray_job_is_waited_for(loop: ReconcileLoop) -> None:
    loop.plan()
    loop.status = {}
    loop.ray_jobs["job-1"]["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    actions = loop.reconcile()
    assert (actions.create, actions.status, actions.requeue_after) == ((), None, POLL_SECONDS)


def test_attempt_ends_once() -> None:
    once = end_attempt(add_attempt({}, Names("job", "uid", 1)), "Failed", END, Cause.NODE_LOST)
    assert end_attempt(once, "Suspended", "2026-03-01T13:00:00Z") == once


def test_status_keeps_the_last_attempts_and_counts_all() -> None:
    status: dict[str, Any] = {}
    for number in range(1, MAX_ATTEMPTS + 6):
        status = add_attempt(status, Names("job", "uid", number))
        status = end_attempt(status, "Failed", END, Cause.NODE_LOST, "x" * 5000)
    kept = status["attempts"]
    assert [attempt["number"] for attempt in kept] == list(range(6, MAX_ATTEMPTS + 6))
    assert failed_attempts(status) == MAX_ATTEMPTS + 5
    assert len(kept[-1]["message"]) == 1024


def test_number_of_an_attempt_that_created_nothing_is_reused() -> None:
    first = end_attempt(add_attempt({}, Names("job", UID, 1)), "Failed", END, Cause.NODE_LOST)
    assert remove_attempt(add_attempt(first, Names("job", UID, 2))) == first
    assert remove_attempt(add_attempt({}, Names("job", UID, 1))) == {}


TURNS = {
    "no-limits": None,
    "its-turn": AdmissionDecision(ahead=0, admitted=True),
    "others-ahead": AdmissionDecision(ahead=3, admitted=False),
}


@pytest.fixture(params=list(TURNS.values()), ids=list(TURNS))
def adopted(request: pytest.FixtureRequest) -> ReconcileLoop:
    """Return a running job of an operator of version 0.1, which did not record attempts."""
    loop = ReconcileLoop()
    ready = {
        "type": "Ready", "status": "False", "lastTransitionTime": CREATED, "reason": "Running",
        "message": "rows are being processed", "observedGeneration": 1,
    }  # fmt: skip
    loop.status = {
        "phase": "Running",
        "observedGeneration": 1,
        "conditions": [ready],
        "progress": {"rows": 10, "total": 20},
        "startTime": CREATED,
        "rayJobName": "job-1",
        "rayClusterName": "job-1-abcde",
    }
    loop.ray_jobs = {"job-1": ray_job_body(**RUNNING, rayClusterName="job-1-abcde")}
    loop.admission = request.param
    return loop


def test_existing_ray_job_is_adopted_and_completed(adopted: ReconcileLoop) -> None:
    before = copy.deepcopy(adopted.ray_jobs)
    adopted.reconcile()
    adopted.set_report(JobState.RUNNING, rows=15)
    adopted.reconcile(5)
    assert adopted.ray_jobs == before
    assert (adopted.phase, adopted.status["progress"]["rows"]) == ("Running", 15)
    assert adopted.status["startTime"] == CREATED
    (attempt,) = adopted.status["attempts"]
    assert (attempt["number"], attempt["rayJobName"]) == (1, "job-1")
    assert attempt["startTime"] == CREATED
    adopted.set_report(JobState.SUCCEEDED, rows=20)
    adopted.set_kuberay_status(**SUCCEEDED)
    adopted.reconcile(5)
    assert (adopted.phase, adopted.attempt["outcome"]) == ("Succeeded", "Succeeded")
    assert list(adopted.ray_jobs) == ["job-1"]
