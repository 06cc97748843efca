"""The operator emits Events and metrics even if the answer to a status patch is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.kube.api_errors import Conflict, Unreachable
from batchinference_operator.observability.metrics import Metrics
from support.operator.harness import LAGS, Harness
from support.operator.virtual_time import in_virtual_time, until

LOST = {
    "no answer": lambda: Unreachable("no answer"),
    "retry conflicts with the first try": lambda: Conflict("has been modified"),
}


def event_counts(harness: Harness) -> dict[str, int]:
    """Return the counts of Events by reason."""
    return {event["reason"]: event["count"] for event in harness.cluster.events.values()}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    labels["namespace"] = "team"
    return metrics.registry.get_sample_value(f"batchinference_{name}", labels)


@pytest.mark.parametrize("lag", LAGS, ids=str)
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
@in_virtual_time
async def test_events_are_posted_once_despite_lost_answers(
    harness: Harness, lost: Callable[[], Exception], lag: dict[str, float]
) -> None:
    writes = 0

    def lose(call: str) -> None:
        nonlocal writes
        if call == "patch status":
            writes += 1
            if writes % 2:
                raise lost()

    harness.api.after = lose
    async with harness.recorded_operator(lag=lag) as metrics:
        harness.cluster.apply(
            retry={"backoff": {"initial": "1s"}, "onCause": {"Application": "Retry"}}
        )
        await harness.ray_job().run(JobState.FAILED)
        ray_job = harness.ray_job()
        ray_job.attempt = 2
        await ray_job.run()
        await until(harness.is_finished)
        await asyncio.sleep(5)
    assert writes > 5
    assert event_counts(harness) == {
        "AttemptStarted": 1,
        "AttemptFailed": 1,
        "Retrying": 1,
        "Succeeded": 1,
    }
    assert value(metrics, "attempts_total", outcome="Failed", cause="Application") == 1
    assert value(metrics, "attempts_total", outcome="Succeeded", cause="") == 1
    assert value(metrics, "rows_finished_total") == 100


@in_virtual_time
async def test_restart_posts_no_event_again(harness: Harness) -> None:
    async with harness.recorded_operator():
        await harness.finish_job()
    before = event_counts(harness)
    async with harness.recorded_operator() as metrics:
        await asyncio.sleep(60)
        harness.cluster.patch("BatchInference", "job", {"metadata": {"generation": 2}})
        await asyncio.sleep(60)
    assert event_counts(harness) == before
    assert not value(metrics, "rows_finished_total")
