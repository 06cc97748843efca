"""The objects of a finished job: how long they are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from batchinference.rendering import KEEP_SECONDS
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.observed_and_actions import Actions
from batchinference_operator.reconcile.ttl import END_SECONDS
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.timestamps import to_rfc3339
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


def ended_job(
    state: JobState = JobState.SUCCEEDED, *, ended_by_kuberay: bool = True, **ttl: str
) -> ReconcileLoop:
    """Return a job with a final report. By default, KubeRay has recorded the end as well."""
    loop = ReconcileLoop(ttl=ttl, retry={"maxAttempts": 1})
    loop.run()
    loop.set_report(state)
    loop.reconcile()
    if ended_by_kuberay:
        loop.set_kuberay_status(**(SUCCEEDED if state == JobState.SUCCEEDED else FAILED))
    return loop


DELETING = {"deletionTimestamp": "2026-03-01T12:30:00Z"}
each_end = pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])


def removed(actions: Actions) -> list[str]:
    return [seen.name for seen in actions.delete_ray_jobs]


def released(actions: Actions) -> list[str]:
    return [seen.name for seen in actions.release_clusters]


@pytest.mark.parametrize("ended", [True, False], ids=["after the end", "before the end"])
def test_kuberay_keeps_the_cluster_for_a_ttl_that_was_raised(ended: bool) -> None:
    loop = ended_job(cluster="5m") if ended else ReconcileLoop(ttl={"cluster": "5m"})
    if not ended:
        loop.run()
    loop.spec["ttl"] = {"cluster": "2h"}
    loop.reconcile(60)
    assert loop.ray_job["spec"]["ttlSecondsAfterFinished"] == 7200
    assert loop.reconcile(60).update_deadlines is None


@each_end
def test_finished_job_releases_its_cluster_once_and_is_final(state: JobState) -> None:
    loop = ended_job(state)
    before = loop.status
    assert released(loop.reconcile()) == ["job-1"]
    loop.set_report(JobState.FAILED if state == JobState.SUCCEEDED else JobState.SUCCEEDED)
    assert loop.reconcile(86_400) == Actions()
    assert loop.status == before


def test_spec_change_of_a_finished_job_updates_only_the_generation() -> None:
    """kubectl wait compares the observedGeneration of the condition."""
    loop = ended_job()
    conditions = [{**one, "observedGeneration": 2} for one in loop.status["conditions"]]
    expected = {**loop.status, "observedGeneration": 2, "conditions": conditions}
    loop.generation = 2
    loop.reconcile(60)
    assert loop.status == expected
    assert loop.reconcile(60) == Actions()


def test_ray_job_has_a_grace_period_to_end_by_itself() -> None:
    loop = ended_job(ended_by_kuberay=False)
    assert loop.reconcile() == Actions(requeue_after=END_SECONDS)
    loop.set_kuberay_status(**SUCCEEDED)
    actions = loop.reconcile(5)
    assert (released(actions), actions.delete_ray_jobs, actions.requeue_after) == (
        ["job-1"],
        (),
        None,
    )


@each_end
def test_ray_job_that_does_not_end_is_removed(state: JobState) -> None:
    loop = ended_job(state, ended_by_kuberay=False)
    assert removed(loop.reconcile(END_SECONDS)) == ["job-1"]
    assert loop.reconcile(60) == Actions(requeue_after=END_SECONDS), "it is being deleted"
    loop.finalize_deletions()
    assert loop.reconcile(60) == Actions()


def test_ray_job_of_an_expired_attempt_is_removed_at_once() -> None:
    loop = ReconcileLoop(deadlines={"active": "1m"})
    loop.run()
    loop.reconcile(61)
    assert loop.phase == "Failed"
    assert removed(loop.reconcile()) == ["job-1"]


def test_every_running_ray_job_is_removed() -> None:
    loop = ended_job()
    loop.ray_jobs["job-2"] = ray_job_body("job-2")
    assert removed(loop.reconcile(END_SECONDS)) == ["job-2"]


@pytest.mark.parametrize("hours", [-6, 0, 6], ids=["clock-behind", "same-clock", "clock-ahead"])
def test_cluster_ttl_starts_at_the_observed_end(hours: int) -> None:
    loop = ReconcileLoop(ttl={"cluster": "5m"})
    loop.run()
    loop.set_report(JobState.SUCCEEDED, updatedAt=to_rfc3339(loop.now + timedelta(hours=hours)))
    loop.reconcile()
    loop.set_kuberay_status(**SUCCEEDED)
    assert loop.reconcile() == Actions(requeue_after=300)
    assert loop.reconcile(299) == Actions(requeue_after=1)
    assert released(loop.reconcile(1)) == ["job-1"]


def test_ray_job_ttl_removes_the_ray_job() -> None:
    loop = ended_job(rayJob="1h")
    actions = loop.reconcile()
    assert (released(actions), actions.requeue_after) == (["job-1"], 3600)
    assert removed(loop.reconcile(3599)) == []
    assert removed(loop.reconcile(1)) == ["job-1"]


def test_ttl_may_change_after_the_end() -> None:
    loop = ended_job()
    loop.reconcile(3600)
    loop.spec["ttl"] = {"rayJob": "10s"}
    assert removed(loop.reconcile()) == ["job-1"]


@pytest.mark.parametrize(
    "metadata",
    [{"ownerReferences": [owner(OTHER_UID)]}, {"ownerReferences": []}, DELETING],
    ids=["of-another-job", "no-owner", "deleting"],
)
def test_foreign_or_deleting_ray_job_is_not_changed(metadata: dict[str, Any]) -> None:
    loop = ended_job(rayJob="10s")
    loop.ray_job["metadata"] |= metadata
    assert loop.reconcile(86_400) == Actions()


@pytest.mark.parametrize("ended_by_kuberay", [True, False], ids=["ended", "running"])
def test_interrupted_removal_is_completed_without_kuberay(ended_by_kuberay: bool) -> None:
    """The RayJob is marked as deleted, but its RayCluster is not."""
    loop = ended_job(ended_by_kuberay=ended_by_kuberay)
    loop.ray_job["metadata"] |= DELETING
    loop.set_kuberay_status(rayClusterName="job-1-cluster")
    loop.pods = (PodView.of(pod_body(**placed())),)
    actions = loop.reconcile(5)
    assert (removed(actions), actions.requeue_after) == (["job-1"], END_SECONDS)
    loop.pods = ()
    assert removed(loop.reconcile(5)) == []


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [
        ({"afterFinished": "1h"}, 3600),
        ({"afterFinished": "1h", "rayJob": "30m"}, 3600),
        ({"afterFinished": "1m", "rayJob": "30m", "cluster": "2h"}, 7200),
    ],
)
def test_job_is_deleted_when_all_of_its_ttls_have_passed(ttl: dict[str, str], seconds: int) -> None:
    loop = ended_job(**ttl)
    assert not loop.reconcile(seconds - 1).delete_job
    assert 0 < (loop.reconcile().requeue_after or 0) <= 1
    assert loop.reconcile(1) == Actions(delete_job=True)


def test_cluster_ttl_holds_for_a_job_that_the_operator_ended() -> None:
    loop = ReconcileLoop(deadlines={"pending": "1m"}, ttl={"cluster": "1h"})
    loop.start()
    loop.reconcile(61)
    assert (loop.phase, removed(loop.reconcile())) == ("Failed", [])
    assert removed(loop.reconcile(3599)) == []
    assert removed(loop.reconcile(1)) == ["job-1"]


def worker_of(loop: ReconcileLoop) -> PodView:
    """Return a worker of the last attempt, which has GPUs."""
    loop.set_kuberay_status(rayClusterName="job-1-cluster")
    return PodView.of(pod_body("job-1-worker", gpus=8, **placed()))


def without_workers(actions: Actions) -> list[str]:
    return [seen.cluster for seen in actions.remove_workers]


def test_only_the_head_of_a_finished_job_is_kept() -> None:
    """No limit counts the pods of a job that has ended."""
    loop = ended_job(cluster="720h", ended_by_kuberay=False)
    loop.pods = (PodView.of(pod_body(**placed())), worker_of(loop))
    assert without_workers(loop.reconcile()) == [], "its driver is running"
    loop.set_kuberay_status(**SUCCEEDED)
    assert without_workers(loop.reconcile()) == ["job-1-cluster"]
    assert without_workers(loop.reconcile(86_400)) == []
    assert released(loop.reconcile()) == [], "the head is kept"


def test_cluster_whose_driver_has_not_started_is_deleted_with_its_workers() -> None:
    """Without the workers, KubeRay would find the cluster complete, and start the driver."""
    loop = ReconcileLoop(deadlines={"pending": "1m"}, ttl={"cluster": "720h"})
    loop.start()
    loop.reconcile(61)
    loop.pods = (worker_of(loop),)
    assert without_workers(loop.reconcile()) == []
    assert removed(loop.reconcile(KEEP_SECONDS)) == ["job-1"]


def test_cluster_whose_workers_are_not_removed_is_deleted() -> None:
    """KubeRay may ignore the change, and a user may take it back."""
    loop = ended_job(cluster="720h")
    worker = worker_of(loop)
    loop.pods = (worker,)
    assert (released(loop.reconcile()), loop.pods) == ([], ())
    loop.pods = (worker,)
    assert released(loop.reconcile(KEEP_SECONDS)) == ["job-1"]


@pytest.mark.parametrize("stops", [True, False], ids=["stops", "hangs"])
def test_driver_of_a_job_that_the_operator_ended_is_stopped(stops: bool) -> None:
    loop = ReconcileLoop(deadlines={"active": "1m"}, ttl={"cluster": "1h"})
    loop.run()
    loop.reconcile(61)
    assert [seen.name for seen in loop.reconcile().stop_drivers] == ["job-1"]
    if stops:
        loop.set_kuberay_status(jobStatus="STOPPED", jobDeploymentStatus="Failed")
        assert removed(loop.reconcile(60)) == []
        assert released(loop.reconcile(3600)) == ["job-1"]
    else:
        loop.set_kuberay_status(jobStatus="RUNNING")
        assert removed(loop.reconcile(30)) == ["job-1"]


def test_cluster_of_a_job_without_gpu_hours_is_removed_at_once() -> None:
    loop = ReconcileLoop(ttl={"cluster": "1h"})
    loop.run()
    loop.limit(device_hours=0.0)
    loop.reconcile(1)
    assert loop.reason == "LimitExceeded"
    assert removed(loop.reconcile()) == ["job-1"]


def test_cluster_of_a_job_without_tokens_is_kept() -> None:
    loop = ReconcileLoop(ttl={"cluster": "1h"}, cluster={"limits": {"deviceHours": 1}})
    loop.run()
    loop.fail("LimitExceeded", "10 tokens are allowed")
    loop.set_kuberay_status(jobDeploymentStatus="Running")
    assert removed(loop.reconcile(10)) == []
    loop.set_kuberay_status(jobStatus="FAILED", jobDeploymentStatus="Failed")
    assert removed(loop.reconcile(3000)) == []
    assert released(loop.reconcile(600)) == ["job-1"]
