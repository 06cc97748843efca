"""What is remembered of the watches' events, and what of it a look at a job gets to see."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering import NAME_LABEL
from batchinference_operator.reconcile.model import Observed
from batchinference_operator.runtime.cache import DOUBT_SECONDS, Cache
from batchinference_operator.status.observations import PodView, RayJobView, Trouble
from support.operator_objects import (
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


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> Cache:
    return Cache(clock)


def seen(cache: Cache) -> Observed:
    observed = cache.observe(KEY)
    assert observed is not None
    return observed


def namesake(body: dict[str, Any]) -> dict[str, Any]:
    """An object that bears the same name, and was created later."""
    metadata = {**body["metadata"], "uid": OTHER_UID, "creationTimestamp": LATER}
    return {**body, "metadata": metadata}


def test_nothing_is_known_of_a_job_that_no_watch_has_shown(cache: Cache) -> None:
    cache.set_ray_job(ray_job_body())
    cache.set_pod(pod_body(**STUCK))
    assert cache.observe(KEY) is None


def test_every_event_gives_the_key_of_its_job(cache: Cache) -> None:
    for take, body in (
        (cache.set_job, job_body()),
        (cache.drop_job, job_body()),
        (cache.set_ray_job, ray_job_body()),
        (cache.drop_ray_job, ray_job_body()),
        (cache.set_pod, pod_body(**STUCK)),
        (cache.set_pod, pod_body()),
        (cache.drop_pod, pod_body()),
    ):
        assert take(body) == KEY


def test_a_look_sees_the_job_its_ray_job_and_its_pods_in_trouble(cache: Cache) -> None:
    cache.set_pod(pod_body("job-1-worker-b", **STUCK))
    cache.set_pod(pod_body("job-1-worker-a", **STUCK))
    cache.set_pod(pod_body("job-1-head"))
    cache.set_ray_job(ray_job_body(**RUNNING))
    cache.set_job(job_body())
    observed = seen(cache)
    assert observed.job.name == "job"
    assert observed.ray_job == RayJobView.of(ray_job_body(**RUNNING))
    trouble = Trouble("ImagePull", "no such image")
    assert observed.pods == (
        PodView("job-1-worker-a", "job", trouble),
        PodView("job-1-worker-b", "job", trouble),
    )
    assert (observed.report, observed.driver_reached) == (None, False)


def test_jobs_of_one_name_in_two_namespaces_are_two_jobs(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_job(job_body(namespace="other"))
    cache.set_ray_job(ray_job_body())
    observed = cache.observe(("other", "job"))
    assert observed is not None
    assert observed.ray_job is None


def test_the_last_event_counts(cache: Cache) -> None:
    cache.set_job(job_body(resourceVersion="1"))
    cache.set_job(job_body(resourceVersion="2"))
    cache.set_ray_job(ray_job_body(**RUNNING))
    cache.set_ray_job(ray_job_body(**SUCCEEDED))
    observed = seen(cache)
    assert observed.job.resource_version == "2"
    assert observed.ray_job is not None
    assert observed.ray_job.succeeded


def test_what_is_deleted_is_gone(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_ray_job(ray_job_body())
    cache.set_pod(pod_body(**STUCK))
    cache.drop_pod(pod_body(**STUCK))
    cache.drop_ray_job(ray_job_body())
    assert seen(cache).ray_job is None
    assert seen(cache).pods == ()
    cache.drop_job(job_body())
    assert cache.observe(KEY) is None


def test_what_was_never_seen_may_be_deleted(cache: Cache) -> None:
    cache.drop_pod(pod_body())
    cache.drop_ray_job(ray_job_body())
    cache.drop_job(job_body())
    assert cache.observe(KEY) is None


def test_a_pod_that_has_recovered_is_no_longer_seen(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_pod(pod_body(**STUCK))
    cache.set_pod(pod_body())
    assert seen(cache).pods == ()


def test_of_a_finished_job_only_its_end_is_kept(cache: Cache) -> None:
    ends = {"type": "Complete", "status": "True"}
    words = {"reason": "Succeeded", "message": "x" * 4096}
    cache.set_job(job_body(status={"phase": "Succeeded", "conditions": [{**ends, **words}]}))
    job = seen(cache).job
    assert (job.spec, job.status) == ({}, {"conditions": [ends]})


# --- two objects of one name, one after the other: their events may come in any order ----


def test_the_end_of_a_former_job_does_not_take_its_namesake_away(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_job(namesake(job_body()))
    cache.set_job(job_body(resourceVersion="5"))
    cache.drop_job(job_body())
    assert seen(cache).job.uid == OTHER_UID


def test_the_end_of_a_former_ray_job_does_not_take_its_namesake_away(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_ray_job(ray_job_body(**RUNNING))
    cache.set_ray_job(namesake(ray_job_body()))
    cache.set_ray_job(ray_job_body(**SUCCEEDED))
    cache.drop_ray_job(ray_job_body())
    ray_job = seen(cache).ray_job
    assert ray_job is not None
    assert (ray_job.uid, ray_job.job_status) == (OTHER_UID, "")


def test_in_their_order_they_replace_each_other(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.drop_job(job_body())
    cache.set_job(namesake(job_body()))
    assert seen(cache).job.uid == OTHER_UID
    cache.drop_job(namesake(job_body()))
    assert cache.observe(KEY) is None


# --- events that were lost --------------------------------------------------------------


def test_a_ray_job_of_which_nothing_is_heard_for_long_is_in_doubt(
    cache: Cache, clock: Clock
) -> None:
    cache.set_ray_job(ray_job_body())
    clock.seconds = DOUBT_SECONDS
    assert not cache.doubtful(NAMESPACE, "job-1")
    clock.seconds = DOUBT_SECONDS + 1
    assert cache.doubtful(NAMESPACE, "job-1")
    cache.set_ray_job(ray_job_body())
    assert not cache.doubtful(NAMESPACE, "job-1")


def test_what_was_never_heard_or_is_gone_is_not_in_doubt(cache: Cache, clock: Clock) -> None:
    cache.set_ray_job(ray_job_body())
    cache.drop_ray_job(ray_job_body())
    clock.seconds = DOUBT_SECONDS + 1
    assert not cache.doubtful(NAMESPACE, "job-1")
    assert not cache.doubtful(NAMESPACE, "another-1")


def doubted(cache: Cache, clock: Clock) -> RayJobView:
    cache.set_job(job_body())
    cache.set_ray_job(ray_job_body(**RUNNING))
    clock.seconds = DOUBT_SECONDS + 1
    ray_job = seen(cache).ray_job
    assert ray_job is not None
    return ray_job


def test_what_a_look_up_shows_takes_the_doubtful_ones_place(cache: Cache, clock: Clock) -> None:
    before = doubted(cache, clock)
    found = cache.confirm(NAMESPACE, before, ray_job_body(**SUCCEEDED))
    assert found is not None
    assert found.succeeded
    assert seen(cache).ray_job == found
    assert not cache.doubtful(NAMESPACE, "job-1")


def test_a_ray_job_that_a_look_up_does_not_find_is_gone(cache: Cache, clock: Clock) -> None:
    before = doubted(cache, clock)
    assert cache.confirm(NAMESPACE, before, None) is None
    assert seen(cache).ray_job is None
    assert not cache.doubtful(NAMESPACE, "job-1")


@pytest.mark.parametrize("looked_up", [None, ray_job_body(**RUNNING)], ids=["gone", "there"])
def test_an_event_during_the_look_up_is_newer_than_what_it_finds(
    cache: Cache, clock: Clock, looked_up: Any
) -> None:
    before = doubted(cache, clock)
    cache.set_ray_job(ray_job_body(**SUCCEEDED))
    found = cache.confirm(NAMESPACE, before, looked_up)
    assert found is not None
    assert found.succeeded
    assert seen(cache).ray_job == found


def test_a_job_whose_end_was_missed_can_be_forgotten_but_not_its_namesake(cache: Cache) -> None:
    cache.set_job(job_body())
    former = seen(cache).job
    cache.set_job(namesake(job_body()))
    cache.forget(former)
    assert seen(cache).job.uid == OTHER_UID
    cache.forget(seen(cache).job)
    assert cache.observe(KEY) is None


def test_nothing_is_left_when_all_is_gone(cache: Cache) -> None:
    for index in range(20):
        name = f"job{index}"
        cache.set_job(job_body(name))
        cache.set_ray_job(ray_job_body(f"{name}-1"))
        cache.set_pod(pod_body(f"{name}-1-head", job=name, **STUCK))
    for index in range(20):
        cache.drop_job(job_body(f"job{index}"))
        cache.drop_ray_job(ray_job_body(f"job{index}-1"))
    kept = [value for value in vars(cache).values() if hasattr(value, "__len__")]
    assert kept == [{}] * len(kept)


def test_a_pod_belongs_to_the_job_that_its_label_names(cache: Cache) -> None:
    cache.set_job(job_body())
    body = pod_body("anything", **STUCK)
    body["metadata"]["labels"] = {"app": "x", NAME_LABEL: "job"}
    assert cache.set_pod(body) == KEY
    assert [pod.name for pod in seen(cache).pods] == ["anything"]
