"""What is left of a job that has ended, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.cleanup import END_SECONDS
from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.reconcile.model import Actions
from batchinference_operator.status.pods import PodView
from support.operator.objects import (
    FAILED,
    OTHER_UID,
    SUCCEEDED,
    owner,
    placed,
    pod_body,
    ray_job_body,
)
from support.operator.reconcile_loop import ReconcileLoop


def over(state: JobState = JobState.SUCCEEDED, *, ended: bool = True, **ttl: str) -> ReconcileLoop:
    """A job whose driver has said its last word, and KubeRay perhaps as well."""
    loop = ReconcileLoop(ttl=ttl, retry={"maxAttempts": 1})
    loop.run()
    loop.set_report(state)
    loop.reconcile()
    if ended:
        loop.set_kuberay_status(**(SUCCEEDED if state == JobState.SUCCEEDED else FAILED))
    return loop


def removed(actions: Actions) -> list[str]:
    return [seen.name for seen in actions.remove]


def released(actions: Actions) -> list[str]:
    return [seen.name for seen in actions.release]


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_finished_job_releases_its_cluster_once(
    state: JobState,
) -> None:
    loop = over(state)
    assert released(loop.reconcile()) == ["job-1"]
    assert loop.reconcile(86_400) == Actions()


def test_the_status_of_a_finished_job_is_final() -> None:
    loop = over()
    before = loop.status
    loop.set_report(JobState.FAILED)
    loop.reconcile(60)
    assert loop.status == before


def of_generation(generation: int, status: dict[str, Any]) -> dict[str, Any]:
    conditions = [
        {**condition, "observedGeneration": generation} for condition in status["conditions"]
    ]
    return {**status, "observedGeneration": generation, "conditions": conditions}


def test_a_change_of_its_spec_is_all_that_it_tells_of_anew() -> None:
    """Who waits by kubectl goes by the generation of the condition itself."""
    loop = over()
    before = loop.status
    loop.generation = 2
    loop.reconcile(60)
    assert loop.status == of_generation(2, before)
    assert loop.reconcile(60) == Actions()


def test_a_ray_job_is_left_some_seconds_to_end_by_itself() -> None:
    loop = over(ended=False)
    assert loop.reconcile() == Actions(again_after=END_SECONDS)
    loop.set_kuberay_status(**SUCCEEDED)
    actions = loop.reconcile(5)
    assert (released(actions), actions.remove, actions.again_after) == (["job-1"], (), None)


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_one_that_does_not_end_is_removed(state: JobState) -> None:
    loop = over(state, ended=False)
    assert removed(loop.reconcile(END_SECONDS)) == ["job-1"]
    assert loop.reconcile(60) == Actions(again_after=END_SECONDS), "it is being deleted"
    loop.finalize_deletions()
    assert loop.reconcile(60) == Actions()


def test_one_that_the_operator_has_given_up_is_removed_at_once() -> None:
    loop = ReconcileLoop(deadlines={"active": "1m"})
    loop.run()
    loop.reconcile(61)
    assert loop.phase == "Failed"
    assert removed(loop.reconcile()) == ["job-1"]


def test_every_ray_job_that_still_goes_on_is_removed() -> None:
    loop = over()
    loop.ray_jobs["job-2"] = ray_job_body("job-2")
    assert removed(loop.reconcile(END_SECONDS)) == ["job-2"]


def test_a_cluster_may_be_kept_for_some_time() -> None:
    loop = over(cluster="5m")
    assert loop.reconcile() == Actions(again_after=300)
    assert loop.reconcile(299) == Actions(again_after=1)
    assert released(loop.reconcile(1)) == ["job-1"]


def test_ray_jobs_may_be_removed_after_some_time() -> None:
    loop = over(rayJob="1h")
    actions = loop.reconcile()
    assert (released(actions), actions.again_after) == (["job-1"], 3600)
    assert removed(loop.reconcile(3599)) == []
    assert removed(loop.reconcile(1)) == ["job-1"]


def test_a_ttl_may_change_after_the_end() -> None:
    loop = over()
    loop.reconcile(3600)
    loop.spec["ttl"] = {"rayJob": "10s"}
    assert removed(loop.reconcile()) == ["job-1"]


@pytest.mark.parametrize("hours", [-6, 6], ids=["behind", "ahead"])
def test_cluster_ttl_starts_at_the_observed_end(
    hours: int,
) -> None:
    loop = ReconcileLoop(ttl={"cluster": "5m"})
    loop.run()
    loop.set_report(JobState.SUCCEEDED, updatedAt=stamp(loop.now + timedelta(hours=hours)))
    loop.reconcile()
    loop.set_kuberay_status(**SUCCEEDED)
    assert loop.reconcile() == Actions(again_after=300)
    assert released(loop.reconcile(300)) == ["job-1"]


@pytest.mark.parametrize("uid", [OTHER_UID, None], ids=["another-jobs", "nobodys"])
def test_what_is_not_the_jobs_own_is_left_alone(uid: str | None) -> None:
    loop = over(rayJob="10s")
    loop.ray_job["metadata"]["ownerReferences"] = [owner(uid)] if uid else []
    assert loop.reconcile(86_400) == Actions()


def test_what_is_being_deleted_is_left_alone() -> None:
    loop = over(rayJob="10s")
    loop.ray_job["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    assert loop.reconcile(86_400) == Actions()


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "goes-on"])
def test_interrupted_removal_is_completed_without_kuberay(ended: bool) -> None:
    """Its RayJob is marked as deleted, and its cluster is not."""
    loop = over(ended=ended)
    loop.ray_job["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    loop.set_kuberay_status(rayClusterName="job-1-cluster")
    held = pod_body(**placed())
    held["metadata"]["labels"]["ray.io/cluster"] = "job-1-cluster"
    loop.pods = (PodView.of(held),)
    actions = loop.reconcile(5)
    assert (removed(actions), actions.again_after) == (["job-1"], END_SECONDS)
    loop.pods = ()
    assert removed(loop.reconcile(5)) == []
