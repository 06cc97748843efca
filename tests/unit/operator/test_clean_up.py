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
from support.looks import Looks
from support.operator_objects import (
    FAILED,
    OTHER_UID,
    SUCCEEDED,
    owner,
    placed,
    pod_body,
    ray_job_body,
)


def over(state: JobState = JobState.SUCCEEDED, *, ended: bool = True, **ttl: str) -> Looks:
    """A job whose driver has said its last word, and KubeRay perhaps as well."""
    looks = Looks(ttl=ttl, retry={"maxAttempts": 1})
    looks.run()
    looks.tell(state)
    looks.look()
    if ended:
        looks.play(**(SUCCEEDED if state == JobState.SUCCEEDED else FAILED))
    return looks


def removed(actions: Actions) -> list[str]:
    return [seen.name for seen in actions.remove]


def released(actions: Actions) -> list[str]:
    return [seen.name for seen in actions.release]


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_the_cluster_of_a_finished_job_is_released_once_and_its_ray_job_kept(
    state: JobState,
) -> None:
    looks = over(state)
    assert released(looks.look()) == ["job-1"]
    assert looks.look(86_400) == Actions()


def test_the_status_of_a_finished_job_is_final() -> None:
    looks = over()
    before = looks.status
    looks.tell(JobState.FAILED)
    looks.look(60)
    assert looks.status == before


def of_generation(generation: int, status: dict[str, Any]) -> dict[str, Any]:
    conditions = [
        {**condition, "observedGeneration": generation} for condition in status["conditions"]
    ]
    return {**status, "observedGeneration": generation, "conditions": conditions}


def test_a_change_of_its_spec_is_all_that_it_tells_of_anew() -> None:
    """Who waits by kubectl goes by the generation of the condition itself."""
    looks = over()
    before = looks.status
    looks.generation = 2
    looks.look(60)
    assert looks.status == of_generation(2, before)
    assert looks.look(60) == Actions()


def test_a_ray_job_is_left_some_seconds_to_end_by_itself() -> None:
    looks = over(ended=False)
    assert looks.look() == Actions(again_after=END_SECONDS)
    looks.play(**SUCCEEDED)
    actions = looks.look(5)
    assert (released(actions), actions.remove, actions.again_after) == (["job-1"], (), None)


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_one_that_does_not_end_is_removed(state: JobState) -> None:
    looks = over(state, ended=False)
    assert removed(looks.look(END_SECONDS)) == ["job-1"]
    assert looks.look(60) == Actions(again_after=END_SECONDS), "it is being deleted"
    looks.let_go()
    assert looks.look(60) == Actions()


def test_one_that_the_operator_has_given_up_is_removed_at_once() -> None:
    looks = Looks(deadlines={"active": "1m"})
    looks.run()
    looks.look(61)
    assert looks.phase == "Failed"
    assert removed(looks.look()) == ["job-1"]


def test_every_ray_job_that_still_goes_on_is_removed() -> None:
    looks = over()
    looks.ray_jobs["job-2"] = ray_job_body("job-2")
    assert removed(looks.look(END_SECONDS)) == ["job-2"]


def test_a_cluster_may_be_kept_for_some_time() -> None:
    looks = over(cluster="5m")
    assert looks.look() == Actions(again_after=300)
    assert looks.look(299) == Actions(again_after=1)
    assert released(looks.look(1)) == ["job-1"]


def test_ray_jobs_may_be_removed_after_some_time() -> None:
    looks = over(rayJob="1h")
    actions = looks.look()
    assert (released(actions), actions.again_after) == (["job-1"], 3600)
    assert removed(looks.look(3599)) == []
    assert removed(looks.look(1)) == ["job-1"]


def test_a_ttl_may_change_after_the_end() -> None:
    looks = over()
    looks.look(3600)
    looks.spec["ttl"] = {"rayJob": "10s"}
    assert removed(looks.look()) == ["job-1"]


@pytest.mark.parametrize("hours", [-6, 6], ids=["behind", "ahead"])
def test_whatever_the_drivers_clock_says_a_cluster_is_kept_from_the_end_that_was_seen(
    hours: int,
) -> None:
    looks = Looks(ttl={"cluster": "5m"})
    looks.run()
    looks.tell(JobState.SUCCEEDED, updatedAt=stamp(looks.now + timedelta(hours=hours)))
    looks.look()
    looks.play(**SUCCEEDED)
    assert looks.look() == Actions(again_after=300)
    assert released(looks.look(300)) == ["job-1"]


@pytest.mark.parametrize("uid", [OTHER_UID, None], ids=["another-jobs", "nobodys"])
def test_what_is_not_the_jobs_own_is_left_alone(uid: str | None) -> None:
    looks = over(rayJob="10s")
    looks.ray_job["metadata"]["ownerReferences"] = [owner(uid)] if uid else []
    assert looks.look(86_400) == Actions()


def test_what_is_being_deleted_is_left_alone() -> None:
    looks = over(rayJob="10s")
    looks.ray_job["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    assert looks.look(86_400) == Actions()


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "goes-on"])
def test_a_removal_that_broke_off_is_completed_though_kuberay_is_away(ended: bool) -> None:
    """Its RayJob is marked as deleted, and its cluster is not."""
    looks = over(ended=ended)
    looks.ray_job["metadata"]["deletionTimestamp"] = "2026-03-01T12:30:00Z"
    looks.play(rayClusterName="job-1-cluster")
    held = pod_body(**placed())
    held["metadata"]["labels"]["ray.io/cluster"] = "job-1-cluster"
    looks.pods = (PodView.of(held),)
    actions = looks.look(5)
    assert (removed(actions), actions.again_after) == (["job-1"], END_SECONDS)
    looks.pods = ()
    assert removed(looks.look(5)) == []
