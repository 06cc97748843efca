"""What is remembered of the watches' events, and what of it a look at a job gets to see."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering import NAME_LABEL
from batchinference.spec.causes import Cause
from batchinference_operator.reconcile.model import Observed
from batchinference_operator.runtime.cache import Cache
from batchinference_operator.runtime.pod_cache import DOUBT_SECONDS
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.pods import Trouble
from support.operator.objects import (
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
    cache.pods.put(pod_body(**STUCK))
    assert cache.observe(KEY) is None


def test_every_event_gives_the_key_of_its_job(cache: Cache) -> None:
    for take, body in (
        (cache.set_job, job_body()),
        (cache.drop_job, job_body()),
        (cache.set_ray_job, ray_job_body()),
        (cache.drop_ray_job, ray_job_body()),
        (cache.pods.put, pod_body(**STUCK)),
        (cache.pods.put, pod_body()),
        (cache.pods.drop, pod_body()),
    ):
        assert take(body) == KEY


def test_a_look_sees_the_job_its_ray_jobs_and_its_pods_by_name(cache: Cache) -> None:
    cache.pods.put(pod_body("job-1-worker-b", **STUCK))
    cache.pods.put(pod_body("job-1-worker-a", **STUCK))
    cache.pods.put(pod_body("job-1-head"))
    cache.set_ray_job(ray_job_body(**RUNNING))
    cache.set_ray_job(ray_job_body("job-2"))
    cache.set_job(job_body())
    observed = seen(cache)
    assert observed.job.name == "job"
    assert observed.ray_jobs == {
        "job-1": RayJobView.of(ray_job_body(**RUNNING)),
        "job-2": RayJobView.of(ray_job_body("job-2")),
    }
    trouble = Trouble(Cause.IMAGE_PULL, "no such image")
    assert [(pod.name, pod.trouble) for pod in observed.pods] == [
        ("job-1-head", None),
        ("job-1-worker-a", trouble),
        ("job-1-worker-b", trouble),
    ]
    assert (observed.report, observed.driver_reached) == (None, False)


def test_jobs_of_one_name_in_two_namespaces_are_two_jobs(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_job(job_body(namespace="other"))
    cache.set_ray_job(ray_job_body())
    observed = cache.observe(("other", "job"))
    assert observed is not None
    assert observed.ray_jobs == {}


def test_the_last_event_counts(cache: Cache) -> None:
    cache.set_job(job_body(resourceVersion="1"))
    cache.set_job(job_body(resourceVersion="2"))
    cache.set_ray_job(ray_job_body(**RUNNING))
    cache.set_ray_job(ray_job_body(**SUCCEEDED))
    observed = seen(cache)
    assert observed.job.resource_version == "2"
    assert observed.ray_jobs["job-1"].succeeded


def test_what_is_deleted_is_gone(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_ray_job(ray_job_body())
    cache.pods.put(pod_body(**STUCK))
    cache.pods.drop(pod_body(**STUCK))
    cache.drop_ray_job(ray_job_body())
    assert seen(cache).ray_jobs == {}
    assert seen(cache).pods == ()
    cache.drop_job(job_body())
    assert cache.observe(KEY) is None


def test_what_was_never_seen_may_be_deleted(cache: Cache) -> None:
    cache.pods.drop(pod_body())
    cache.drop_ray_job(ray_job_body())
    cache.drop_job(job_body())
    assert cache.observe(KEY) is None


def test_a_pod_that_has_recovered_is_no_longer_in_trouble(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.pods.put(pod_body(**STUCK))
    cache.pods.put(pod_body())
    (pod,) = seen(cache).pods
    assert pod.trouble is None


def test_of_a_finished_job_only_its_end_and_its_ttl_are_kept(cache: Cache) -> None:
    ends = {"type": "Complete", "status": "True", "reason": "Succeeded"}
    ends["lastTransitionTime"] = LATER
    words = {"message": "x" * 4096, "observedGeneration": 1}
    end = {"observedGeneration": 1, "conditions": [{**ends, **words}]}
    body = job_body(status={"phase": "Succeeded", "attempts": [{"number": 1}], **end})
    cache.set_job({**body, "spec": {**body["spec"], "ttl": {"rayJob": "1h"}}})
    job = seen(cache).job
    assert job.spec == {"ttl": {"rayJob": "1h"}}
    assert job.status == {"observedGeneration": 1, "conditions": [ends]}


def test_changed_spec_of_finished_job_keeps_objects_until_recorded(
    cache: Cache,
) -> None:
    end = {"type": "Failed", "status": "True", "reason": "BadInput", "message": "no such file"}
    status = {"phase": "Failed", "observedGeneration": 1, "conditions": [end]}
    cache.set_job(job_body(status=status, generation=2))
    assert seen(cache).job.status == status


# --- two objects of one name, one after the other: their events may come in any order ----


def test_the_end_of_a_former_job_does_not_take_its_namesake_away(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_job(namesake(job_body()))
    cache.set_job(job_body(resourceVersion="5"))
    cache.drop_job(job_body())
    assert seen(cache).job.uid == OTHER_UID


def test_of_two_jobs_of_one_second_the_later_version_counts(cache: Cache) -> None:
    later = namesake(job_body(resourceVersion="100"))
    later["metadata"]["creationTimestamp"] = job_body()["metadata"]["creationTimestamp"]
    cache.set_job(later)
    cache.set_job(job_body(resourceVersion="99"))
    cache.drop_job(job_body(resourceVersion="99"))
    assert seen(cache).job.uid == OTHER_UID


def test_late_delete_event_keeps_the_new_ray_job(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_ray_job(ray_job_body(**RUNNING))
    cache.set_ray_job(namesake(ray_job_body()))
    cache.set_ray_job(ray_job_body(**SUCCEEDED))
    cache.drop_ray_job(ray_job_body())
    ray_job = seen(cache).ray_jobs["job-1"]
    assert (ray_job.uid, ray_job.job_status) == (OTHER_UID, "")


def test_in_their_order_they_replace_each_other(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.drop_job(job_body())
    cache.set_job(namesake(job_body()))
    assert seen(cache).job.uid == OTHER_UID
    cache.drop_job(namesake(job_body()))
    assert cache.observe(KEY) is None


# --- what is known ahead of the watches ---------------------------------------------------


def test_what_tells_nothing_new_is_no_news(cache: Cache) -> None:
    assert cache.set_job(job_body()) == KEY
    assert cache.set_job(job_body()) is None
    assert cache.set_ray_job(ray_job_body(**RUNNING)) == KEY
    assert cache.set_ray_job(ray_job_body(**RUNNING)) is None
    assert cache.set_ray_job(ray_job_body(**SUCCEEDED)) == KEY
    assert cache.pods.put(pod_body(**STUCK)) == KEY
    assert cache.pods.put(pod_body(**STUCK)) is None
    assert cache.pods.drop(pod_body(**STUCK)) == KEY


def test_own_write_wins_over_older_watch_events(cache: Cache) -> None:
    cache.set_job(job_body(resourceVersion="9"))
    cache.wrote(job_body(resourceVersion="11", status={"phase": "Starting"}))
    assert cache.set_job(job_body(resourceVersion="10")) is None
    assert cache.set_job(job_body(resourceVersion="11")) is None
    assert seen(cache).job.status == {"phase": "Starting"}
    assert cache.set_job(job_body(resourceVersion="12")) == KEY


def test_own_write_does_not_revive_a_deleted_job(
    cache: Cache,
) -> None:
    cache.set_job(job_body())
    cache.drop_job(job_body())
    cache.wrote(job_body(resourceVersion="2"))
    assert cache.observe(KEY) is None


def test_created_ray_job_is_in_doubt_until_the_watch_shows_it(cache: Cache) -> None:
    cache.set_job(job_body(status={"rayJobName": "job-1", "conditions": []}))
    cache.made(ray_job_body())
    assert cache.doubtful(NAMESPACE, "job-1")
    assert not seen(cache).watched
    assert cache.set_ray_job(ray_job_body()) is None
    assert not cache.doubtful(NAMESPACE, "job-1")
    assert seen(cache).watched


def test_a_ray_job_that_was_removed_is_being_deleted_and_in_doubt(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_ray_job(ray_job_body(**RUNNING))
    cache.removed(KEY, seen(cache).ray_jobs["job-1"])
    assert seen(cache).ray_jobs["job-1"].deleting
    assert cache.doubtful(NAMESPACE, "job-1")


def test_a_namesake_of_a_ray_job_that_was_removed_is_another(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_ray_job(ray_job_body())
    former = seen(cache).ray_jobs["job-1"]
    cache.set_ray_job(namesake(ray_job_body()))
    cache.removed(KEY, former)
    assert not seen(cache).ray_jobs["job-1"].deleting


def test_a_ray_job_of_which_the_watch_was_faster_is_as_that_tells(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.set_ray_job(ray_job_body(**RUNNING))
    cache.made(ray_job_body())
    assert seen(cache).ray_jobs["job-1"].job_status == "RUNNING"


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
    return seen(cache).ray_jobs["job-1"]


def test_what_a_look_up_shows_takes_the_doubtful_ones_place(cache: Cache, clock: Clock) -> None:
    before = doubted(cache, clock)
    found = cache.confirm(KEY, before, ray_job_body(**SUCCEEDED))
    assert found is not None
    assert found.succeeded
    assert seen(cache).ray_jobs == {"job-1": found}
    assert not cache.doubtful(NAMESPACE, "job-1")


def test_a_ray_job_that_a_look_up_does_not_find_is_gone(cache: Cache, clock: Clock) -> None:
    before = doubted(cache, clock)
    assert cache.confirm(KEY, before, None) is None
    assert seen(cache).ray_jobs == {}
    assert not cache.doubtful(NAMESPACE, "job-1")


@pytest.mark.parametrize("looked_up", [None, ray_job_body(**RUNNING)], ids=["gone", "there"])
def test_an_event_during_the_look_up_is_newer_than_what_it_finds(
    cache: Cache, clock: Clock, looked_up: Any
) -> None:
    before = doubted(cache, clock)
    cache.set_ray_job(ray_job_body(**SUCCEEDED))
    found = cache.confirm(KEY, before, looked_up)
    assert found is not None
    assert found.succeeded
    assert seen(cache).ray_jobs == {"job-1": found}


def test_forget_drops_a_job_but_not_its_namesake(cache: Cache) -> None:
    cache.set_job(job_body())
    former = seen(cache).job
    cache.set_job(namesake(job_body()))
    cache.forget(KEY, former.uid)
    assert seen(cache).job.uid == OTHER_UID
    cache.forget(KEY, seen(cache).job.uid)
    assert cache.observe(KEY) is None


@pytest.mark.parametrize("job_first", [True, False], ids=["the-job-first", "the-pods-first"])
def test_nothing_is_left_when_all_is_gone(cache: Cache, job_first: bool) -> None:
    for index in range(20):
        name = f"job{index}"
        cache.set_job(job_body(name))
        cache.set_ray_job(ray_job_body(f"{name}-1"))
        cache.pods.put(pod_body(f"{name}-1-head", job=name, **KILLED))
    for index in range(20):
        name = f"job{index}"
        takes = [
            lambda name=name: cache.drop_job(job_body(name)),
            lambda name=name: cache.drop_ray_job(ray_job_body(f"{name}-1")),
            lambda name=name: cache.pods.drop(pod_body(f"{name}-1-head", job=name, **KILLED)),
        ]
        for take in takes if job_first else reversed(takes):
            take()
    kept = [value for value in vars(cache).values() if hasattr(value, "__len__")]
    assert not any(kept)


def test_a_pod_belongs_to_the_job_that_its_label_names(cache: Cache) -> None:
    cache.set_job(job_body())
    body = pod_body("anything", **STUCK)
    body["metadata"]["labels"] = {"app": "x", NAME_LABEL: "job"}
    assert cache.pods.put(body) == KEY
    assert [pod.name for pod in seen(cache).pods] == ["anything"]


# --- what befell pods -------------------------------------------------------------------


def lost(cache: Cache) -> list[tuple[Cause, bool]]:
    return [(loss.cause, loss.of_head) for loss in seen(cache).losses]


def evicted(name: str, attempt: int = 1) -> dict[str, Any]:
    return pod_body(name, attempt=attempt, reason="Evicted", phase="Failed")


def followed(cache: Cache, attempt: int = 1) -> None:
    """A job of which this attempt goes on."""
    cache.set_job(job_body(status={"rayJobName": f"job-{attempt}", "conditions": []}))
    cache.set_ray_job(ray_job_body(f"job-{attempt}"))


def test_the_loss_of_a_pod_is_remembered_when_the_pod_is_gone(cache: Cache) -> None:
    followed(cache)
    cache.pods.put(pod_body("job-1-worker", **KILLED))
    cache.pods.drop(pod_body("job-1-worker", **KILLED))
    assert seen(cache).pods == ()
    assert lost(cache) == [(Cause.OUT_OF_MEMORY, False)]


def test_a_pod_may_tell_of_its_end_in_its_last_words_alone(cache: Cache) -> None:
    followed(cache)
    cache.pods.put(pod_body("job-1-worker"))
    assert lost(cache) == []
    cache.pods.drop(pod_body("job-1-worker", **KILLED))
    assert lost(cache) == [(Cause.OUT_OF_MEMORY, False)]


def test_the_loss_of_the_head_tells_more_than_that_of_a_worker(cache: Cache) -> None:
    followed(cache)
    cache.pods.put(evicted("job-1-head"))
    cache.pods.put(pod_body("job-1-worker", **KILLED))
    assert lost(cache) == [(Cause.NODE_LOST, True)]


def test_of_two_workers_the_last_one_counts(cache: Cache) -> None:
    followed(cache)
    cache.pods.put(evicted("job-1-worker-a"))
    cache.pods.put(pod_body("job-1-worker-b", **KILLED))
    assert lost(cache) == [(Cause.OUT_OF_MEMORY, False)]


def test_a_loss_is_that_of_its_attempt_alone(cache: Cache) -> None:
    followed(cache, attempt=2)
    cache.set_ray_job(ray_job_body("job-1"))
    cache.pods.put(evicted("job-1-head", attempt=1))
    assert lost(cache) == []


def test_losses_are_not_inherited_by_a_new_ray_job(cache: Cache) -> None:
    followed(cache)
    cache.pods.put(evicted("job-1-head"))
    cache.drop_ray_job(ray_job_body())
    cache.set_ray_job(namesake(ray_job_body()))
    assert lost(cache) == []


def test_a_loss_of_a_job_that_is_gone_is_not_that_of_its_namesake(cache: Cache) -> None:
    followed(cache)
    former = evicted("job-1-head")
    former["metadata"]["labels"]["ray.io/cluster"] = "job-1-former"
    cache.pods.put(former)
    assert lost(cache) == []


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "gone"])
def test_pod_with_missed_end_is_forgotten_after_its_ray_job(
    cache: Cache, clock: Clock, ends: bool
) -> None:
    followed(cache)
    cache.pods.put(pod_body())
    clock.seconds = DOUBT_SECONDS + 1
    assert len(seen(cache).pods) == 1, "its RayJob goes on"
    if ends:
        cache.set_ray_job(ray_job_body(**SUCCEEDED))
    else:
        cache.drop_ray_job(ray_job_body())
    assert seen(cache).pods == ()


def test_a_pod_of_which_nothing_is_heard_for_long_is_in_doubt(cache: Cache, clock: Clock) -> None:
    followed(cache)
    cache.pods.put(pod_body("job-1-worker"))
    clock.seconds = DOUBT_SECONDS
    cache.pods.put(pod_body("job-1-head"))
    assert cache.pods.doubtful(KEY) == {}
    clock.seconds += 1
    assert set(cache.pods.doubtful(KEY)) == {"job-1-head", "job-1-worker"}


def test_of_pods_in_doubt_those_stay_that_are_there(cache: Cache, clock: Clock) -> None:
    followed(cache)
    for name in ("there", "gone", "heard"):
        cache.pods.put(pod_body(name))
    clock.seconds = DOUBT_SECONDS + 1
    doubtful = cache.pods.doubtful(KEY)
    cache.pods.put(pod_body("heard"))
    kept = cache.pods.confirm(KEY, doubtful, {"there"})
    assert [pod.name for pod in kept] == ["heard", "there"]
    assert seen(cache).pods == kept
    assert cache.pods.doubtful(KEY) == {}, "nothing is asked again for a while"


def test_a_pod_may_be_seen_before_its_ray_job(cache: Cache) -> None:
    cache.set_job(job_body())
    cache.pods.put(pod_body())
    assert len(seen(cache).pods) == 1
