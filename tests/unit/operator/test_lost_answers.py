"""A status was written, and the answer was lost: what it says has happened is told all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.runtime.gateway import Conflict, Unreachable
from batchinference_operator.runtime.metrics import Metrics
from support.virtual_time import in_leaping_time, until
from support.world import LAGS, World

LOST = {
    "no answer": lambda: Unreachable("no answer"),
    "the second try of the request finds the first": lambda: Conflict("has been modified"),
}


def told(world: World) -> dict[str, int]:
    """The reasons of Events, and how often each was counted."""
    return {event["reason"]: event["count"] for event in world.cluster.events.values()}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"batchinference_{name}", labels)


@pytest.mark.parametrize("lag", LAGS, ids=str)
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
@in_leaping_time
async def test_each_event_is_posted_once_though_every_second_answer_is_lost(
    lost: Callable[[], Exception], lag: dict[str, float]
) -> None:
    world = World()
    writes = 0

    def lose(call: str) -> None:
        nonlocal writes
        if call == "patch status":
            writes += 1
            if writes % 2:
                raise lost()

    world.gateway.after = lose
    async with world.recorded(lag=lag) as metrics:
        world.cluster.apply(
            retry={"backoff": {"initial": "1s"}, "onCause": {"Application": "retry"}}
        )
        await world.kuberay().run(JobState.FAILED)
        kuberay = world.kuberay()
        kuberay.attempt = 2
        await kuberay.run()
        await until(world.over)
        await asyncio.sleep(5)
    assert writes > 5
    assert told(world) == {"AttemptStarted": 1, "AttemptFailed": 1, "Retrying": 1, "Succeeded": 1}
    assert value(metrics, "attempts_total", outcome="Failed", cause="Application") == 1
    assert value(metrics, "attempts_total", outcome="Succeeded", cause="") == 1
    assert value(metrics, "rows_finished_total") == 100


@in_leaping_time
async def test_what_the_operator_finds_when_it_starts_is_told_by_nobody_anew() -> None:
    world = World()
    async with world.recorded():
        await world.a_job_ends()
    before = told(world)
    async with world.recorded() as metrics:
        await asyncio.sleep(60)
        world.cluster.change("BatchInference", "job", {"metadata": {"generation": 2}})
        await asyncio.sleep(60)
    assert told(world) == before
    assert value(metrics, "rows_finished_total") == 0
