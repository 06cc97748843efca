"""The concurrency limit is never exceeded, and the next job starts as soon as it can."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from batchinference_operator.kube.api_errors import Conflict, Refused, Unreachable
from batchinference_operator.reconcile.admission_queue import Concurrency
from batchinference_operator.status.ray_job_view import RayJobView
from support.operator.fake_cluster import FakeKubeApi
from support.operator.harness import LAGS, Harness
from support.operator.objects import CONFIG, FAILED, NAMESPACE, job_body, ray_job_body
from support.operator.virtual_time import in_virtual_time, until
from support.tiers import examples

NAMES = [f"job-{letter}" for letter in "abcdef"]
FAULTS: list[Callable[[], Exception]] = [
    lambda: Conflict("the object has been modified"),
    lambda: Refused("403: exceeded quota"),
    lambda: Unreachable("no answer"),
]


def at_most(count: int) -> Any:
    return replace(CONFIG, concurrency=Concurrency(total=count))


def live(harness: Harness) -> list[str]:
    """Return the names of the RayJobs that have not ended."""
    return [name for (kind, name), body in harness.cluster.objects.items()
            if kind == "RayJob" and not RayJobView.of(body).ended]  # fmt: skip


async def apply_in_order(harness: Harness, *names: str) -> None:
    for name in names:
        harness.cluster.apply(name)
        await asyncio.sleep(1)


def at_creation_of(harness: Harness, name: str, action: Callable[[], None]) -> None:
    """Run `action` before each call that creates this RayJob."""

    class KubeApi(FakeKubeApi):
        async def create(self, body: dict[str, Any]) -> dict[str, Any] | None:
            if body["kind"] == "RayJob" and body["metadata"]["name"] == name:
                action()
            return await super().create(body)

    harness.api = KubeApi(harness.cluster)


def count_live_ray_jobs(harness: Harness) -> list[int]:
    """Return a list that gets the number of live RayJobs at each change of the cluster."""
    counts: list[int] = []
    harness.cluster.watchers.append(lambda event, body: counts.append(len(live(harness))))
    return counts


def watch_ray_jobs(harness: Harness) -> list[str]:
    """Return a list that gets the job of each RayJob, in the order of creation."""
    started: list[str] = []

    def watch(event: str | None, body: dict[str, Any]) -> None:
        if body["kind"] == "RayJob" and event == "ADDED":
            started.append(body["metadata"]["name"][:-2])

    harness.cluster.watchers.append(watch)
    return started


async def start_a_and_queue_b(harness: Harness, **spec: Any) -> None:
    """Start job-a, and let job-b wait in the admission queue."""
    harness.cluster.apply("job-a", **spec)
    await until(lambda: harness.phase("job-a") == "Starting")
    harness.cluster.apply("job-b")
    await until(lambda: harness.reason("job-b") == "AdmissionPending")


async def run_job(harness: Harness, name: str) -> None:
    await until(lambda: harness.cluster.get("RayJob", f"{name}-1"), 10_000)
    await harness.ray_job(name).run()


@in_virtual_time
async def test_job_admitted_while_it_is_reconciled_stays_admitted(harness: Harness) -> None:
    class KubeApi(FakeKubeApi):
        async def patch_status(self, namespace: str, name: str, *rest: Any) -> Any:
            answer = await super().patch_status(namespace, name, *rest)
            if name == "job-b" and harness.phase("job-a") == "Starting":
                await harness.ray_job("job-a").run()
                await until(lambda: harness.phase("job-a") == "Succeeded")
            return answer

    harness.api = KubeApi(harness.cluster)
    started = watch_ray_jobs(harness)
    async with harness.operator(config=at_most(1), workers=4):
        await start_a_and_queue_b(harness)
        await apply_in_order(harness, "job-c")
        await until(lambda: len(started) > 1)
    assert started[:2] == ["job-a", "job-b"]


@in_virtual_time
async def test_next_job_starts_when_one_is_suspended(harness: Harness) -> None:
    async with harness.operator(config=at_most(1)):
        await start_a_and_queue_b(harness)
        harness.cluster.patch("BatchInference", "job-a", {"spec": {"suspend": True}})
        await until(lambda: harness.phase("job-b") == "Starting", 10)
        assert live(harness) == ["job-b-1"]
        harness.cluster.patch("BatchInference", "job-a", {"spec": {"suspend": False}})
        await until(lambda: harness.reason("job-a") == "AdmissionPending")


@in_virtual_time
async def test_deleted_job_that_a_finalizer_keeps_counts_until_its_ray_job_ends(
    harness: Harness,
) -> None:
    harness.cluster.finalizers_hold = True
    async with harness.operator(config=at_most(1)):
        await start_a_and_queue_b(harness)
        harness.cluster.patch("BatchInference", "job-a", {"metadata": {"finalizers": ["other"]}})
        harness.cluster.delete("BatchInference", "job-a")
        await asyncio.sleep(1)
        harness.cluster.patch("RayJob", "job-a-1", {"metadata": {"ownerReferences": []}})
        await asyncio.sleep(3600)
        assert harness.reason("job-b") == "AdmissionPending"
        harness.cluster.patch("RayJob", "job-a-1", {"status": FAILED})
        await until(lambda: harness.phase("job-b") == "Starting", 10)


@pytest.mark.parametrize("at_creation", [False, True], ids=["before", "at-creation"])
@in_virtual_time
async def test_job_whose_name_is_in_use_blocks_no_other(
    harness: Harness, at_creation: bool
) -> None:
    def take_name() -> None:
        harness.cluster.put(ray_job_body("job-a-1", owner_uid=None))

    if at_creation:
        at_creation_of(harness, "job-a-1", take_name)
    else:
        take_name()
    await apply_in_order(harness, "job-a", "job-b")
    async with harness.operator(config=at_most(1)):
        await until(lambda: harness.phase("job-b") == "Starting", 60)
        assert harness.reason("job-a") == "NameTaken"


@in_virtual_time
async def test_refused_job_frees_its_slot(harness: Harness) -> None:
    quota_exceeded = True

    def refuse() -> None:
        if quota_exceeded:
            raise Refused("403: exceeded quota")

    at_creation_of(harness, "job-a-1", refuse)
    await apply_in_order(harness, "job-a", "job-b")
    async with harness.operator(config=at_most(1)):
        await until(lambda: harness.phase("job-b") == "Starting", 10)
        quota_exceeded = False
        await run_job(harness, "job-b")
        await run_job(harness, "job-a")
        await until(lambda: harness.is_finished("job-a"))
    assert harness.phase("job-a") == "Succeeded"
    assert harness.cluster.status("job-a")["attempt"] == 1


@in_virtual_time
async def test_ray_job_of_a_deleted_job_counts_until_it_is_gone(harness: Harness) -> None:
    async with harness.operator(config=at_most(1)):
        await start_a_and_queue_b(harness)
        harness.cluster.delete("BatchInference", "job-a")
        await asyncio.sleep(1000)
        assert live(harness) == ["job-a-1"]
        harness.cluster.delete("RayJob", "job-a-1")
        await until(lambda: harness.phase("job-b") == "Starting", 1000)


@in_virtual_time
async def test_waiting_job_deleted_without_an_event_blocks_no_other(harness: Harness) -> None:
    await apply_in_order(harness, *NAMES[:3])
    async with harness.operator(config=at_most(1)):
        await until(lambda: harness.reason("job-c") == "AdmissionPending")
        harness.cluster.delete("BatchInference", "job-b", unseen=True)
        await harness.ray_job("job-a").run()
        await until(lambda: harness.phase("job-c") == "Starting")


@pytest.mark.scaled("model-check")
@pytest.mark.parametrize("seed", range(examples(24, 3)))
@in_virtual_time
async def test_concurrency_limit_holds_despite_faults_and_restarts(seed: int) -> None:
    chance, harness, faults = random.Random(seed), Harness(), [40]
    counts, limit = count_live_ray_jobs(harness), chance.randint(1, 2)

    def disturb(call: str) -> None:
        if faults[0] and not call.startswith("list") and chance.random() < 0.15:
            faults[0] -= 1
            raise chance.choice(FAULTS)()

    harness.api = FakeKubeApi(harness.cluster, before=disturb, after=disturb)
    plays = [asyncio.create_task(run_job(harness, name)) for name in NAMES]
    for name in NAMES:
        harness.cluster.apply(name, priority=chance.randint(0, 1))
    while not all(map(harness.is_finished, NAMES)):
        lag = chance.choice(LAGS)
        async with harness.operator(lag=lag, config=at_most(limit), workers=4):
            await asyncio.sleep(chance.choice([0.3, 3, 30, 300]))
    await asyncio.gather(*plays)
    assert {harness.phase(name) for name in NAMES} == {"Succeeded"}
    assert max(counts) <= limit


@in_virtual_time
async def test_job_that_waits_for_the_list_of_ray_jobs_keeps_its_position(harness: Harness) -> None:
    started = watch_ray_jobs(harness)
    async with harness.operator(config=at_most(1)) as controller:
        controller.is_listed = lambda namespace: namespace != NAMESPACE
        await apply_in_order(harness, "job-a", "job-b")
        controller.is_listed = lambda _: True
        controller.queue.add((NAMESPACE, "job-b"))
        await asyncio.sleep(10)
        assert started == []
        controller.requeue_waiting_for_list(NAMESPACE)
        await until(lambda: started == ["job-a"], 10)


@in_virtual_time
async def test_job_of_a_namespace_that_cannot_be_listed_blocks_no_other(harness: Harness) -> None:
    started = watch_ray_jobs(harness)
    async with harness.operator(config=at_most(1)) as controller:
        controller.is_listed = lambda namespace: namespace != "gone"
        harness.cluster.put(job_body("job-a", namespace="gone"))
        harness.cluster.apply("job-b")
        await asyncio.sleep(100)
        assert started == [], "the first list may still be on its way"
        controller.is_refused = lambda namespace: namespace == "gone"
        controller.requeue_waiting_for_list("gone")
        await until(lambda: started == ["job-b"], 10)
