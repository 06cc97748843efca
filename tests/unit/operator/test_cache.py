"""The cache of watched objects, and what a reconcile of a job reads from it."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering import NAME_LABEL
from batchinference.spec.causes import Cause
from batchinference_operator.controller.cache import Cache
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.status.pod_problems import PodProblem
from batchinference_operator.status.ray_job_view import RayJobView
from support.operator.objects import (
    CONFIG,
    NAMESPACE,
    OTHER_UID,
    RUNNING,
    SUCCEEDED,
    job_body,
    pod_body,
    ray_job_body,
    waiting,
)

KEY = (NAMESPACE, "job")
LATER = "2026-03-01T13:00:00Z"
STUCK = waiting("ImagePullBackOff", "no such image")
KILLED = {"containerStatuses": [{"name": "ray", "state": {"terminated": {"reason": "OOMKilled"}}}]}


@pytest.fixture
def empty_cache() -> Cache:
    return Cache(CONFIG)


@pytest.fixture
def cache(empty_cache: Cache) -> Cache:
    """Return a cache with one job."""
    empty_cache.set_job(job_body())
    return empty_cache


def observe(cache: Cache) -> Observed:
    observed = cache.observe(KEY)
    assert observed is not None
    return observed


def recreated(body: dict[str, Any]) -> dict[str, Any]:
    """Return another object of the same name, created later."""
    metadata = {**body["metadata"], "uid": OTHER_UID, "creationTimestamp": LATER}
    return {**body, "metadata": metadata}


def test_job_without_watch_event_is_unknown(empty_cache: Cache) -> None:
    empty_cache.set_ray_job(ray_job_body())
    empty_cache.pods.set_pod(pod_body(**STUCK))
    assert empty_cache.observe(KEY) is None


def test_observation_has_job_ray_jobs_and_pods_by_name(empty_cache: Cache) -> None:
    for name, status in (("job-1-worker-b", STUCK), ("job-1-worker-a", STUCK), ("job-1-head", {})):
        empty_cache.pods.set_pod(pod_body(name, **status))
    bodies = ray_job_body(**RUNNING), ray_job_body("job-2")
    for body in bodies:
        empty_cache.set_ray_job(body)
    empty_cache.set_job(job_body())
    observed = observe(empty_cache)
    assert observed.job.name == "job"
    assert observed.ray_jobs == {seen.name: seen for seen in map(RayJobView.of, bodies)}
    problem = PodProblem(Cause.IMAGE_PULL, "no such image")
    assert [(pod.name, pod.problem) for pod in observed.pods] == [
        ("job-1-head", None),
        ("job-1-worker-a", problem),
        ("job-1-worker-b", problem),
    ]
    assert (observed.report, observed.driver_reached) == (None, False)


def test_equal_job_names_in_two_namespaces_are_distinct(cache: Cache) -> None:
    cache.set_job(job_body(namespace="other"))
    cache.set_ray_job(ray_job_body())
    observed = cache.observe(("other", "job"))
    assert observed is not None
    assert observed.ray_jobs == {}


def test_last_event_wins(cache: Cache) -> None:
    cache.set_job(job_body(resourceVersion="2"))
    cache.set_ray_job(ray_job_body(**RUNNING))
    cache.set_ray_job(ray_job_body(**SUCCEEDED))
    cache.pods.set_pod(pod_body(**STUCK))
    cache.pods.set_pod(pod_body())
    observed = observe(cache)
    assert observed.job.resource_version == "2"
    assert observed.ray_jobs["job-1"].succeeded
    assert [pod.problem for pod in observed.pods] == [None]


def test_deleted_objects_are_forgotten_and_deleted_once(cache: Cache) -> None:
    cache.set_ray_job(ray_job_body())
    cache.pods.set_pod(pod_body(**STUCK))
    for _ in range(2):
        cache.pods.delete_pod(pod_body(**STUCK))
        cache.delete_ray_job(ray_job_body())
        assert (observe(cache).ray_jobs, observe(cache).pods) == ({}, ())
    cache.delete_job(job_body())
    for drop, body in (
        (cache.pods.delete_pod, pod_body()),
        (cache.delete_ray_job, ray_job_body()),
        (cache.delete_job, job_body()),
    ):
        drop(body)
        assert cache.observe(KEY) is None


def test_finished_job_keeps_only_its_end_its_usage_and_its_ttl(cache: Cache) -> None:
    end = {"type": "Complete", "status": "True", "reason": "Succeeded"}
    end["lastTransitionTime"] = LATER
    dropped = {"message": "x" * 4096, "observedGeneration": 1}
    kept = {"ttl": {"rayJob": "1h"}, "cluster": {"limits": {"deviceHours": 1}}}
    status = {"phase": "Succeeded", "attempts": [{"number": 1}], "observedGeneration": 1}
    status |= {"conditions": [{**end, **dropped}], "deviceSeconds": 5}
    body = job_body(resourceVersion="2", status=status)
    cache.set_job({**body, "spec": {**body["spec"], **kept}})
    job = observe(cache).job
    assert job.spec == kept
    assert job.status == {"observedGeneration": 1, "conditions": [end], "deviceSeconds": 5}


def test_changed_spec_of_finished_job_keeps_objects_until_recorded(cache: Cache) -> None:
    end = {"type": "Failed", "status": "True", "reason": "BadInput", "message": "no such file"}
    status = {"phase": "Failed", "observedGeneration": 1, "conditions": [end]}
    cache.set_job(job_body(status=status, generation=2, resourceVersion="2"))
    assert observe(cache).job.status == status


def test_late_delete_event_keeps_the_recreated_job(cache: Cache) -> None:
    cache.set_job(recreated(job_body()))
    cache.set_job(job_body(resourceVersion="5"))
    cache.delete_job(job_body())
    assert observe(cache).job.uid == OTHER_UID


def test_job_recreated_within_a_second_wins_by_version(empty_cache: Cache) -> None:
    later = recreated(job_body(resourceVersion="100"))
    later["metadata"]["creationTimestamp"] = job_body()["metadata"]["creationTimestamp"]
    empty_cache.set_job(later)
    empty_cache.set_job(job_body(resourceVersion="99"))
    empty_cache.delete_job(job_body(resourceVersion="99"))
    assert observe(empty_cache).job.uid == OTHER_UID


def test_late_delete_event_keeps_the_new_ray_job(cache: Cache) -> None:
    cache.set_ray_job(ray_job_body(**RUNNING))
    cache.set_ray_job(recreated(ray_job_body()))
    cache.set_ray_job(ray_job_body(**SUCCEEDED))
    cache.delete_ray_job(ray_job_body())
    ray_job = observe(cache).ray_jobs["job-1"]
    assert (ray_job.uid, ray_job.job_status) == (OTHER_UID, "")


def test_recreated_job_replaces_the_deleted_one(cache: Cache) -> None:
    cache.delete_job(job_body())
    cache.set_job(recreated(job_body()))
    assert observe(cache).job.uid == OTHER_UID
    cache.delete_job(recreated(job_body()))
    assert cache.observe(KEY) is None


def test_event_without_a_change_returns_no_key(empty_cache: Cache) -> None:
    cache = empty_cache
    for handle, body, key in (
        (cache.set_job, job_body(), KEY),
        (cache.set_job, job_body(), None),
        (cache.set_ray_job, ray_job_body(**RUNNING), KEY),
        (cache.set_ray_job, ray_job_body(**RUNNING), None),
        (cache.set_ray_job, ray_job_body(**SUCCEEDED), KEY),
        (cache.pods.set_pod, pod_body(**STUCK), KEY),
        (cache.pods.set_pod, pod_body(**STUCK), None),
        (cache.pods.delete_pod, pod_body(**STUCK), KEY),
        (cache.delete_ray_job, ray_job_body(**SUCCEEDED), KEY),
        (cache.delete_job, job_body(), KEY),
    ):
        assert handle(body) == key, (handle, body)


def test_own_write_wins_over_older_watch_events_but_not_over_deletion(cache: Cache) -> None:
    cache.set_job(job_body(resourceVersion="9"))
    cache.set_written_job(job_body(resourceVersion="11", status={"phase": "Starting"}))
    assert cache.set_job(job_body(resourceVersion="10")) is None
    assert cache.set_job(job_body(resourceVersion="11")) is None
    assert observe(cache).job.status == {"phase": "Starting"}
    assert cache.set_job(job_body(resourceVersion="12")) == KEY
    cache.delete_job(job_body(resourceVersion="12"))
    cache.set_written_job(job_body(resourceVersion="13"))
    assert cache.observe(KEY) is None


def test_removed_ray_job_is_deleting_until_it_is_recreated(cache: Cache) -> None:
    cache.set_ray_job(ray_job_body(**RUNNING))
    former = observe(cache).ray_jobs["job-1"]
    cache.mark_deleting(KEY, former, LATER)
    assert observe(cache).ray_jobs["job-1"].deleted_at == LATER
    cache.set_ray_job(recreated(ray_job_body()))
    cache.mark_deleting(KEY, former, LATER)
    assert not observe(cache).ray_jobs["job-1"].deleting


def versioned(version: str, **status: str) -> dict[str, Any]:
    return with_version(ray_job_body(**status), version)


def with_version(body: dict[str, Any], version: str) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "resourceVersion": version}}


def test_watch_event_before_the_create_answer_wins(cache: Cache) -> None:
    cache.set_ray_job(versioned("9", **RUNNING))
    cache.add_ray_job(versioned("8"))
    assert observe(cache).ray_jobs["job-1"].job_status == "RUNNING"


@pytest.mark.parametrize("namespace", [NAMESPACE, ""], ids=["namespace", "cluster-wide"])
def test_created_ray_job_is_known_unless_the_watch_has_reported_its_deletion(
    cache: Cache, namespace: str
) -> None:
    cache.set_ray_job_version(namespace, "9")
    cache.add_ray_job(versioned("10"))
    assert set(observe(cache).ray_jobs) == {"job-1"}
    cache.delete_ray_job(versioned("10"))
    cache.set_ray_job(with_version(ray_job_body("job-2"), "11"))
    cache.add_ray_job(versioned("10"))
    assert set(observe(cache).ray_jobs) == {"job-2"}


def test_object_whose_label_changes_belongs_to_one_job(cache: Cache) -> None:
    """The watch reports no deletion for the job of the earlier label."""
    moves = [(cache.set_ray_job, ray_job_body()), (cache.pods.set_pod, pod_body())]
    for put, body in moves:
        put(body)
    assert (len(observe(cache).ray_jobs), len(observe(cache).pods)) == (1, 1)
    for put, body in moves:
        labels = {**body["metadata"]["labels"], NAME_LABEL: "other"}
        put({**body, "metadata": {**body["metadata"], "labels": labels}})
    assert (observe(cache).ray_jobs, observe(cache).pods) == ({}, ())
    assert len(cache.ray_jobs((NAMESPACE, "other"))) == 1


def test_known_objects_are_listed_by_namespace(cache: Cache) -> None:
    cache.set_ray_job(ray_job_body())
    cache.pods.set_pod(pod_body("job-1-head"))
    for namespace, result in (("", 1), (NAMESPACE, 1), ("other", 0)):
        assert len(cache.ray_job_stubs(namespace)) == result
        assert len(cache.pods.stubs(namespace)) == result
    for body in cache.ray_job_stubs(""):
        cache.delete_ray_job(body)
    for body in cache.pods.stubs(""):
        cache.pods.delete_pod(body)
    assert (observe(cache).ray_jobs, observe(cache).pods) == ({}, ())


def test_forget_drops_a_job_but_not_a_recreated_one(cache: Cache) -> None:
    former = observe(cache).job
    cache.set_job(recreated(job_body()))
    cache.forget_job(KEY, former.uid)
    assert observe(cache).job.uid == OTHER_UID
    cache.forget_job(KEY, OTHER_UID)
    assert cache.observe(KEY) is None


@pytest.mark.parametrize("job_first", [True, False], ids=["job-first", "pods-first"])
def test_cache_is_empty_after_all_objects_are_deleted(empty_cache: Cache, job_first: bool) -> None:
    cache, names = empty_cache, [f"job{index}" for index in range(20)]
    for name in names:
        cache.set_job(job_body(name))
        cache.set_ray_job(ray_job_body(f"{name}-1"))
        cache.pods.set_pod(pod_body(f"{name}-1-head", job=name, **KILLED))
    for name in names:
        deletions = [
            (cache.delete_job, job_body(name)),
            (cache.delete_ray_job, ray_job_body(f"{name}-1")),
            (cache.pods.delete_pod, pod_body(f"{name}-1-head", job=name, **KILLED)),
        ]
        for drop, body in deletions if job_first else reversed(deletions):
            drop(body)
    del cache._ray_job_versions  # one of each namespace
    kept = [value for value in vars(cache).values() if hasattr(value, "__len__")]
    assert not any(kept)


def test_pod_belongs_to_the_job_of_its_label(cache: Cache) -> None:
    body = pod_body("anything", **STUCK)
    body["metadata"]["labels"] = {"app": "x", NAME_LABEL: "job"}
    assert cache.pods.set_pod(body) == KEY
    assert [pod.name for pod in observe(cache).pods] == ["anything"]


def disruption_in(cache: Cache) -> tuple[Cause, bool] | None:
    lost = observe(cache).disruption
    return None if lost is None else (lost.cause, lost.of_head)


def evicted(name: str, attempt: int = 1) -> dict[str, Any]:
    return pod_body(name, attempt=attempt, reason="Evicted", phase="Failed")


def run_attempt(cache: Cache, attempt: int = 1) -> None:
    cache.set_job(job_body(status={"rayJobName": f"job-{attempt}", "conditions": []}))
    cache.set_ray_job(ray_job_body(f"job-{attempt}"))


@pytest.fixture
def running(empty_cache: Cache) -> Cache:
    """Return a cache with a job that runs its first attempt."""
    run_attempt(empty_cache)
    return empty_cache


def test_disruption_is_kept_after_its_pod_is_deleted(running: Cache) -> None:
    disruption = (Cause.OUT_OF_MEMORY, False)
    running.pods.set_pod(pod_body("job-1-worker", **KILLED))
    running.pods.delete_pod(pod_body("job-1-worker"))
    assert observe(running).pods == ()
    assert disruption_in(running) == disruption


@pytest.mark.parametrize(
    ("lost", "disruption"),
    [("job-1-head", (Cause.NODE_LOST, True)), ("job-1-worker-a", (Cause.OUT_OF_MEMORY, False))],
    ids=["head-over-worker", "last-of-two-workers"],
)
def test_only_the_decisive_disruption_is_kept(running: Cache, lost: str, disruption: Any) -> None:
    running.pods.set_pod(evicted(lost))
    running.pods.set_pod(pod_body("job-1-worker-b", **KILLED))
    assert disruption_in(running) == disruption


def test_head_that_replaces_a_lost_head_is_recorded(running: Cache) -> None:
    """After a drain, it may wait for a new node for minutes."""
    lost, new = evicted("job-1-head"), pod_body("job-1-head")
    lost["metadata"]["uid"], new["metadata"]["uid"] = "a", "b"
    running.pods.set_pod(lost)
    assert not replaced(running)
    running.pods.set_pod({**new, "metadata": {**new["metadata"], "deletionTimestamp": LATER}})
    assert not replaced(running), "it is being deleted"
    running.pods.set_pod(new)
    assert replaced(running)
    running.pods.set_pod(lost)
    assert replaced(running), "the lost head may end later"
    lost["metadata"]["uid"] = "b"
    running.pods.set_pod(lost)
    assert not replaced(running), "the new head is lost, too"


def replaced(cache: Cache) -> bool:
    lost = observe(cache).disruption
    assert lost is not None
    return lost.replaced


def test_loss_of_an_earlier_attempt_is_ignored(empty_cache: Cache) -> None:
    run_attempt(empty_cache, 2)
    empty_cache.set_ray_job(ray_job_body("job-1"))
    empty_cache.pods.set_pod(evicted("job-1-head", attempt=1))
    assert disruption_in(empty_cache) is None


def test_losses_are_not_inherited_by_a_new_ray_job(running: Cache) -> None:
    running.pods.set_pod(evicted("job-1-head"))
    running.delete_ray_job(ray_job_body())
    running.set_ray_job(recreated(ray_job_body()))
    assert disruption_in(running) is None


def test_loss_of_a_deleted_job_is_not_inherited(running: Cache) -> None:
    former = evicted("job-1-head")
    former["metadata"]["labels"]["ray.io/cluster"] = "job-1-former"
    running.pods.set_pod(former)
    assert disruption_in(running) is None
