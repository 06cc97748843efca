"""An operator is killed at any call. The operator that replaces it reaches the same end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.admission_queue import Concurrency
from batchinference_operator.reconcile.config import Config
from support.operator.fake_cluster import FakeCluster, FakeKubeApi
from support.operator.fake_kuberay import FakeDriver, RayJobScript
from support.operator.harness import running_operator
from support.operator.objects import CONFIG
from support.operator.virtual_time import run, until
from support.tiers import in_long_tier


class Killed(BaseException):
    """The death of the operator process. A BaseException, which the operator does not catch."""


class Killer:
    """Passes `calls` calls. Kills the operator at the next one, before or after it is served."""

    def __init__(self, calls: int, when: str) -> None:
        self.left = calls
        self.killed = False
        self.when = when
        self.calls: list[str] = []

    def before(self, call: str) -> None:
        self.calls.append(call)
        if self.left == 0 and not self.killed and self.when == "before":
            self._kill()

    def after(self, call: str) -> None:
        if self.left == 0 and not self.killed and self.when == "after":
            self._kill()
        self.left -= 1

    def _kill(self) -> None:
        self.killed = True
        raise Killed


NEVER = 10_000
LAG = {"RayJob": 1.0}
"""Seconds. Long enough that the operator uses a live read instead of waiting for the watch."""
TIMES = {"lastTransitionTime", "creationTimestamp", "startTime", "completionTime", "progressTime",
         "usageTime", "endTime", "uid", "resourceVersion"}  # fmt: skip
"""Fields that depend on the time."""

Scenario = Callable[[FakeCluster, FakeDriver], Coroutine[Any, Any, None]]


async def succeeds(cluster: FakeCluster, driver: FakeDriver) -> None:
    await RayJobScript(cluster, driver).run()


async def fails(cluster: FakeCluster, driver: FakeDriver) -> None:
    await RayJobScript(cluster, driver).run(JobState.FAILED)


async def fails_once(cluster: FakeCluster, driver: FakeDriver) -> None:
    await RayJobScript(cluster, driver).run(JobState.FAILED, reason="NodeLost")
    await RayJobScript(cluster, driver, attempt=2).run()


async def is_suspended(cluster: FakeCluster, driver: FakeDriver) -> None:
    await RayJobScript(cluster, driver).start()
    cluster.patch("BatchInference", "job", {"spec": {"suspend": True}})
    await until(lambda: cluster.status().get("phase") == "Suspended")
    cluster.patch("BatchInference", "job", {"spec": {"suspend": False}})
    await RayJobScript(cluster, driver, attempt=2).run()


async def another_waits(cluster: FakeCluster, driver: FakeDriver) -> None:
    await RayJobScript(cluster, driver).start()
    cluster.apply("urgent", priority=5)
    await RayJobScript(cluster, driver).run()
    await RayJobScript(cluster, driver, "urgent").run()


SCENARIOS: dict[str, Scenario] = {
    "succeeds": succeeds,
    "fails": fails,
    "fails-once": fails_once,
    "is-suspended": is_suspended,
    "another-waits": another_waits,
}
ONE = replace(CONFIG, concurrency=Concurrency(total=1))


def config_of(scenario: Scenario) -> Config:
    return ONE if scenario is another_waits else CONFIG


async def run_and_replace(killer: Killer, scenario: Scenario) -> FakeCluster:
    """Run a scenario with an operator that is killed once and replaced. Return the cluster."""
    cluster, driver = FakeCluster(), FakeDriver()
    config = config_of(scenario)
    cluster.apply()
    running = asyncio.create_task(scenario(cluster, driver))
    api = FakeKubeApi(cluster, killer.before, killer.after)
    with contextlib.suppress(BaseExceptionGroup, Killed):
        async with running_operator(api, driver, lag=LAG, config=config):
            await asyncio.sleep(600)
    async with running_operator(FakeKubeApi(cluster), driver, lag=LAG, config=config):
        await until(running.done)
        await asyncio.sleep(300)
    await running
    return cluster


def without_times(result: Any) -> Any:
    """Return the same value without the fields that depend on the time."""
    if isinstance(result, dict):
        return {key: without_times(value) for key, value in result.items() if key not in TIMES}
    return [without_times(one) for one in result] if isinstance(result, list) else result


def outcome(cluster: FakeCluster) -> Any:
    """Return all objects at the end, and the phases of the job. The phase Planning is omitted: it
    only appears where an operator finds the objects of another operator."""
    jobs = dict.fromkeys(name for name, _ in cluster.history)
    written = {job: [one["phase"] for name, one in cluster.history if name == job] for job in jobs}
    phases = {
        job: [phase for phase, _ in itertools.groupby(each) if phase != "Planning"]
        for job, each in written.items()
    }
    return without_times({**cluster.objects, "phases": phases})


def run_without_faults(scenario: Scenario) -> tuple[list[str], Any]:
    """Return the calls of an operator that is not killed, and the outcome."""
    killer = Killer(NEVER, "before")
    cluster = run(run_and_replace(killer, scenario))
    return killer.calls, outcome(cluster)


@pytest.fixture(scope="module")
def runs_without_faults() -> dict[str, tuple[list[str], Any]]:
    return {name: run_without_faults(scenario) for name, scenario in SCENARIOS.items()}


def test_scenarios_make_calls_of_every_kind(
    runs_without_faults: dict[str, tuple[list[str], Any]],
) -> None:
    calls = {call for each, _ in runs_without_faults.values() for call in each}
    assert calls == {
        *("create ConfigMap", "create Secret", "create PodDisruptionBudget", "create RayJob"),
        *("patch status", "get RayJob", "get Events"),
        *("list BatchInference", "list RayJob"),
        *("release", "remove RayJob", "remove RayCluster"),
    }


def test_scenarios_end_as_expected(runs_without_faults: dict[str, tuple[list[str], Any]]) -> None:
    ends = {name: result["phases"]["job"][-1] for name, (_, result) in runs_without_faults.items()}
    assert ends == {**dict.fromkeys(SCENARIOS, "Succeeded"), "fails": "Failed"}


def common_calls(name: str, runs_without_faults: dict[str, tuple[list[str], Any]]) -> int:
    """Return the number of first calls that an earlier scenario with the same config also makes.

    After these calls, the cluster is in the same state in both scenarios.
    """
    own, limit = runs_without_faults[name][0], 0
    for other in itertools.takewhile(lambda other: other != name, SCENARIOS):
        if config_of(SCENARIOS[other]) is config_of(SCENARIOS[name]):
            pairs = zip(own, runs_without_faults[other][0], strict=False)
            same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
            limit = max(limit, len(list(same)))
    return limit


@pytest.mark.scaled("model-check")
@pytest.mark.parametrize("name", SCENARIOS)
def test_operator_killed_at_any_call_does_not_change_the_end(
    name: str, runs_without_faults: dict[str, tuple[list[str], Any]]
) -> None:
    """At a landing, the kills are before the first call and after each write that no earlier
    scenario has in common. A kill at another moment leaves the cluster in the same state as one of
    these."""
    calls, expected = runs_without_faults[name]
    numbers = range(len(calls))
    if in_long_tier():
        kills = [(number, when) for number in numbers for when in ("before", "after")]
    else:
        new = numbers[common_calls(name, runs_without_faults) :]
        writes = [number for number in new if not calls[number].startswith(("get", "list"))]
        kills = [(0, "before"), *((number, "after") for number in writes)]
    differing = []
    for number, when in kills:
        killer = Killer(number, when)
        cluster = run(run_and_replace(killer, SCENARIOS[name]))
        assert killer.killed
        if outcome(cluster) != expected:
            differing.append((when, number, calls[number]))
    assert differing == []
