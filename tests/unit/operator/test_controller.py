"""The loop as a whole, with an API server, a KubeRay and a driver in memory."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.reconcile import finished
from batchinference_operator.runtime.cache import DOUBT_SECONDS, job_view
from batchinference_operator.runtime.driver import Answer
from batchinference_operator.runtime.gateway import Refused
from support.fake_cluster import FakeCluster, FakeDriver, KubeRay, MemoryGateway, operated
from support.operator_objects import (
    NAMESPACE,
    OTHER_UID,
    RUNNING,
    SETTINGS,
    UID,
    pod_body,
    ray_job_body,
    report,
    waiting,
)
from support.virtual_time import clock, in_leaping_time, until

LAGS: list[dict[str, float]] = [{}, {"BatchInference": 3}, {"RayJob": 3}, {"RayJob": 0.2}]


class World:
    """A cluster with all that the operator talks to. `calls` are its calls of the API server."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.driver = FakeDriver()
        self.calls: list[tuple[float, str]] = []
        self.gateway = MemoryGateway(self.cluster, before=self.called)

    def called(self, call: str) -> None:
        self.calls.append((clock(), call))

    def kuberay(self, name: str = "job") -> KubeRay:
        return KubeRay(self.cluster, self.driver, name)

    def phase(self, name: str = "job") -> Any:
        return self.cluster.status(name).get("phase")

    def reason(self, name: str = "job") -> Any:
        return self.cluster.status(name).get("conditions", [{}])[0].get("reason")

    def over(self, name: str = "job") -> bool:
        body = self.cluster.get("BatchInference", name)
        return body is not None and finished(job_view(body))

    def count(self, call: str) -> int:
        return sum(each == call for _, each in self.calls)


def phases(world: World) -> list[str]:
    """The phases in their order, each as long as it lasted."""
    return [phase for phase, _ in itertools.groupby(s["phase"] for s in world.cluster.history)]


# --- the life of a job ------------------------------------------------------------------


@pytest.mark.parametrize("lag", LAGS, ids=str)
@in_leaping_time
async def test_a_job_goes_from_creation_to_complete(lag: dict[str, float]) -> None:
    world = World()
    async with operated(world.gateway, world.driver, lag=lag):
        world.cluster.apply()
        await world.kuberay().run()
        await until(world.over)
        await asyncio.sleep(100)
    kinds = {kind for kind, _ in world.cluster.objects}
    assert kinds == {"BatchInference", "ConfigMap", "Secret", "RayJob"}
    status = world.cluster.status()
    assert status["phase"] == "Succeeded"
    assert status["progress"] == {"rows": 100, "total": 100}
    assert status["completionTime"] == "2026-03-01T12:02:00Z"
    assert (status["rayJobName"], status["rayClusterName"]) == ("job-1", "a-raycluster")
    ray_job = world.cluster.get("RayJob", "job-1")
    assert ray_job is not None
    assert ray_job["spec"]["ttlSecondsAfterFinished"] == 0, "its cluster has been released"


@pytest.mark.parametrize("lag", LAGS, ids=str)
@in_leaping_time
async def test_the_phases_come_in_their_order_and_progress_only_grows(
    lag: dict[str, float],
) -> None:
    world = World()
    async with operated(world.gateway, world.driver, lag=lag):
        world.cluster.apply()
        await world.kuberay().run()
        await until(world.over)
    assert phases(world) == ["Pending", "Starting", "Running", "Finalizing", "Succeeded"]
    rows = [status["progress"]["rows"] for status in world.cluster.history if "progress" in status]
    assert rows == sorted(rows)


@pytest.mark.parametrize("lag", LAGS, ids=str)
@in_leaping_time
async def test_no_status_is_written_that_says_nothing_new(lag: dict[str, float]) -> None:
    world = World()
    async with operated(world.gateway, world.driver, lag=lag):
        world.cluster.apply()
        await world.kuberay().run()
        await until(world.over)
        await asyncio.sleep(1000)
    history = world.cluster.history
    assert all(before != after for before, after in itertools.pairwise(history))
    assert len(history) < 15


@in_leaping_time
async def test_a_job_whose_driver_fails_fails_in_its_words() -> None:
    world = World()
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await world.kuberay().run(JobState.FAILED)
        await until(world.over)
    assert (world.phase(), world.reason()) == ("Failed", "Application")


@in_leaping_time
async def test_a_finished_job_costs_nothing_more() -> None:
    world = World()
    async with operated(world.gateway, world.driver) as controller:
        world.cluster.apply()
        await world.kuberay().run()
        await until(world.over)
        await asyncio.sleep(100)
        calls, asked = len(world.calls), len(world.driver.asked)
        controller.queue.add((NAMESPACE, "job"))
        await asyncio.sleep(10_000)
        assert (len(world.calls), len(world.driver.asked)) == (calls, asked)


@in_leaping_time
async def test_the_driver_is_asked_with_the_jobs_token() -> None:
    world = World()
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await world.kuberay().run()
        await until(world.over)
        uid = world.cluster.objects["BatchInference", "job"]["metadata"]["uid"]
    assert set(world.driver.asked) == {(NAMESPACE, "job-1", SETTINGS.token(uid))}


@in_leaping_time
async def test_many_jobs_go_their_way_with_few_workers() -> None:
    world = World()
    names = [f"job-{index}" for index in range(40)]
    async with operated(world.gateway, world.driver, workers=3):
        for name in names:
            world.cluster.apply(name)
        await asyncio.gather(*(world.kuberay(name).run() for name in names))
        await until(lambda: all(map(world.over, names)))
    assert {world.phase(name) for name in names} == {"Succeeded"}


@in_leaping_time
async def test_a_pod_that_cannot_start_shows_in_the_status_and_goes_when_it_starts() -> None:
    world = World()
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await until(lambda: world.cluster.get("RayJob", "job-1"))
        world.cluster.put(pod_body(**waiting("ImagePullBackOff", "no such image")))
        await until(lambda: world.reason() == "ImagePull")
        world.cluster.put(pod_body(phase="Running", containerStatuses=[]))
        await until(lambda: world.reason() == "Starting")


# --- what goes wrong at the API server --------------------------------------------------


@in_leaping_time
async def test_a_job_that_was_changed_meanwhile_is_looked_at_again() -> None:
    world = World()

    def change_it(call: str) -> None:
        world.called(call)
        if call == "patch status" and world.count(call) == 1:
            world.cluster.change("BatchInference", "job", {"metadata": {"labels": {"a": "b"}}})

    world.gateway.before = change_it
    async with operated(world.gateway, world.driver, lag={"BatchInference": 60, "RayJob": 60}):
        world.cluster.apply()
        await until(world.phase)
    news = 120  # when the watch shows the change
    tries = [when for when, call in world.calls if call == "patch status" and when < news]
    assert len(tries) > 1, "it does not count on the watch"


@in_leaping_time
async def test_a_conflict_is_nothing_to_complain_of(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    async with operated(world.gateway, world.driver, lag={"BatchInference": 30}):
        world.cluster.apply()
        await world.kuberay().run()
        await until(world.over)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@in_leaping_time
async def test_a_failing_api_server_is_tried_again_ever_less_often() -> None:
    world = World()

    def fail(call: str) -> None:
        world.called(call)
        if world.count("create ConfigMap") <= 5:
            raise OSError("connection reset")

    world.gateway.before = fail
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await until(lambda: world.cluster.get("RayJob", "job-1"))
    times = [when for when, call in world.calls if call == "create ConfigMap"]
    assert times[:6] == [0, 0.5, 1.5, 3.5, 7.5, 15.5]


@in_leaping_time
async def test_after_a_success_the_next_failure_is_tried_again_soon() -> None:
    world = World()

    def fail(call: str) -> None:
        world.called(call)
        if world.count("create ConfigMap") <= 5 or (call == "release" and world.count(call) == 1):
            raise OSError("connection reset")

    world.gateway.before = fail
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await world.kuberay().run()
        await until(lambda: world.count("release") == 2)
    first, second = (when for when, call in world.calls if call == "release")
    assert second - first == 0.5


@in_leaping_time
async def test_a_job_that_cannot_be_started_does_not_hold_up_another() -> None:
    world = World()

    class Picky(MemoryGateway):
        async def create(self, body: dict[str, Any]) -> None:
            if body["metadata"]["name"].startswith("bad"):
                raise OSError("connection reset")
            await super().create(body)

    async with operated(Picky(world.cluster), world.driver, workers=1):
        world.cluster.apply("bad")
        world.cluster.apply("good")
        await world.kuberay("good").run()
        await until(lambda: world.over("good"))
    assert world.cluster.status("bad") == {}


@in_leaping_time
async def test_a_refusal_stands_in_the_status_until_the_objects_are_taken() -> None:
    world = World()
    full = True

    def refuse(call: str) -> None:
        world.called(call)
        if call == "create RayJob" and full:
            raise Refused("403: exceeded quota")

    world.gateway.before = refuse
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await until(lambda: world.reason() == "Refused")
        assert world.phase() == "Pending"
        assert world.cluster.status()["conditions"][0]["message"] == "403: exceeded quota"
        await asyncio.sleep(300)
        assert world.count("patch status") == 1
        assert 5 < world.count("create RayJob") < 15, "again and again, but not in a hurry"
        full = False
        await world.kuberay().run()
        await until(world.over)
    assert world.phase() == "Succeeded"


@in_leaping_time
async def test_a_worker_outlives_any_error() -> None:
    world = World()
    broken = True

    def fail(call: str) -> None:
        if broken:
            raise RuntimeError("a bug")

    world.gateway.before = fail
    async with operated(world.gateway, world.driver, workers=1) as controller:
        world.cluster.apply()
        await asyncio.sleep(100)
        broken = False
        await world.kuberay().run()
        await until(world.over)
        assert len(controller.queue) == 0


# --- what people delete -----------------------------------------------------------------


@in_leaping_time
async def test_a_deleted_job_is_forgotten() -> None:
    world = World()
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await until(lambda: world.phase() == "Starting")
        world.cluster.delete("BatchInference", "job")
        world.cluster.delete("RayJob", "job-1")
        await asyncio.sleep(1)
        calls = len(world.calls)
        await asyncio.sleep(10_000)
        assert len(world.calls) == calls


@in_leaping_time
async def test_a_deleted_job_is_forgotten_even_if_no_watch_has_seen_it_go() -> None:
    world = World()
    async with operated(world.gateway, world.driver) as controller:
        world.cluster.apply()
        await until(lambda: world.phase() == "Starting")
        world.cluster.delete("BatchInference", "job", unseen=True)
        world.cluster.delete("RayJob", "job-1", unseen=True)
        await asyncio.sleep(DOUBT_SECONDS + 100)
        assert controller.cache.observe((NAMESPACE, "job")) is None
        calls = len(world.calls)
        await asyncio.sleep(10_000)
        assert len(world.calls) == calls


@pytest.mark.parametrize("unseen", [False, True], ids=["seen", "unseen"])
@in_leaping_time
async def test_a_job_whose_ray_job_is_deleted_fails(unseen: bool) -> None:
    world = World()
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await until(lambda: world.phase() == "Starting")
        began = clock()
        world.cluster.delete("RayJob", "job-1", unseen=unseen)
        await until(world.over)
        assert clock() - began < (DOUBT_SECONDS + 60 if unseen else 2)
        await asyncio.sleep(1000)
    assert (world.phase(), world.reason()) == ("Failed", "RayJobDeleted")
    assert world.count("create RayJob") == 1


@pytest.mark.parametrize("lag", LAGS, ids=str)
@in_leaping_time
async def test_a_ray_job_is_not_taken_for_deleted_because_the_watch_is_late(
    lag: dict[str, float],
) -> None:
    world = World()
    async with operated(world.gateway, world.driver, lag=lag):
        world.cluster.apply()
        await asyncio.sleep(100)
    assert world.phase() == "Starting"
    assert phases(world) == ["Pending", "Starting"]


@in_leaping_time
async def test_a_job_completes_though_no_event_of_its_ray_job_ever_comes() -> None:
    world = World()
    async with operated(world.gateway, world.driver, lag={"RayJob": 1e9}):
        world.cluster.apply()
        await world.kuberay().run()
        await until(world.over)
    assert world.phase() == "Succeeded"


@in_leaping_time
async def test_a_job_that_is_created_anew_waits_for_its_former_selfs_ray_job() -> None:
    world = World()
    former = ray_job_body(owner_uid=OTHER_UID, **RUNNING)
    world.cluster.put(former)
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await until(lambda: world.reason() == "NameTaken")
        await asyncio.sleep(100)
        assert world.driver.asked == []
        world.cluster.delete("RayJob", "job-1")
        await until(lambda: world.phase() == "Starting")
    found = world.cluster.objects["RayJob", "job-1"]
    assert found["metadata"]["ownerReferences"][0]["uid"] != OTHER_UID


@in_leaping_time
async def test_a_ray_job_that_no_watch_shows_is_in_the_way_all_the_same() -> None:
    world = World()
    foreign = ray_job_body(owner_uid=None)
    foreign["metadata"]["labels"] = {}
    world.cluster.put(foreign)
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await until(lambda: world.reason() == "NameTaken")
        world.cluster.delete("RayJob", "job-1")
        await until(lambda: world.phase() == "Starting")


@in_leaping_time
async def test_a_job_that_is_being_deleted_gets_no_new_ray_job() -> None:
    """Foreground deletion takes the RayJob first, while the job itself is still there."""
    world = World()
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await until(lambda: world.phase() == "Starting")
        status = world.cluster.status()
        going = {"metadata": {"deletionTimestamp": "2026-03-01T12:30:00Z"}}
        world.cluster.change("BatchInference", "job", going)
        world.cluster.delete("RayJob", "job-1")
        await asyncio.sleep(1000)
    assert world.cluster.get("RayJob", "job-1") is None
    assert world.cluster.status() == status


# --- a driver that cannot be heard ------------------------------------------------------


@in_leaping_time
async def test_a_driver_that_falls_silent_sets_nothing_back() -> None:
    world = World()
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await until(lambda: world.cluster.get("RayJob", "job-1"))
        kuberay = world.kuberay()
        await kuberay.step(**RUNNING)
        await kuberay.tell(Answer(reached=True, report=report(rows=40)))
        await kuberay.tell(Answer(reached=False))
        assert (world.phase(), world.reason()) == ("Running", "DriverSilent")
        await kuberay.tell(Answer(reached=True, report=report(JobState.PREPARING)))
        await kuberay.tell(Answer(reached=True, report=report(rows=10)))
        assert (world.phase(), world.reason()) == ("Running", "Running")
        assert world.cluster.status()["progress"] == {"rows": 40}


@in_leaping_time
async def test_a_job_ends_without_its_report_when_nobody_answers_for_a_minute() -> None:
    world = World()
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await until(lambda: world.cluster.get("RayJob", "job-1"))
        kuberay = world.kuberay()
        await kuberay.step(**RUNNING)
        end = {"endTime": "2026-03-01T12:00:30Z"}
        began = clock()
        await kuberay.step(jobStatus="SUCCEEDED", jobDeploymentStatus="Complete", **end)
        assert world.phase() == "Finalizing"
        await until(world.over)
        assert 60 <= clock() - began <= 90
    assert world.phase() == "Succeeded"
    assert "could not be read" in world.cluster.status()["conditions"][0]["message"]


# --- beginning and end of the operator itself -------------------------------------------


@in_leaping_time
async def test_an_operator_that_starts_among_finished_jobs_has_nothing_to_do() -> None:
    world = World()
    async with operated(world.gateway, world.driver):
        world.cluster.apply()
        await world.kuberay().run()
        await until(world.over)
        await asyncio.sleep(10)
    calls = len(world.calls)
    async with operated(world.gateway, world.driver):
        await asyncio.sleep(1000)
    assert len(world.calls) == calls


@in_leaping_time
async def test_an_operator_that_was_away_when_the_job_ended_writes_its_end() -> None:
    world = World()
    world.cluster.apply()
    async with operated(world.gateway, world.driver):
        await until(lambda: world.phase() == "Starting")
    await world.kuberay().run()
    await asyncio.sleep(86_400)
    assert not world.over()
    async with operated(world.gateway, world.driver):
        await until(world.over)
    assert world.phase() == "Succeeded"
    assert world.cluster.status()["completionTime"] == "2026-03-01T12:02:00Z"


@in_leaping_time
async def test_cancelled_workers_end_at_once_in_the_midst_of_a_look() -> None:
    world = World()
    forever = asyncio.Event()

    class Slow(FakeDriver):
        async def ask(self, *_: Any) -> Answer:
            forever.set()
            await asyncio.sleep(1e6)
            return Answer(reached=False)

    world.cluster.put(ray_job_body(**RUNNING))
    world.cluster.apply()
    world.cluster.change("BatchInference", "job", {"metadata": {"uid": UID}})
    async with operated(world.gateway, Slow()):
        await forever.wait()
        began = clock()
    assert clock() - began < 1
