"""The cost of a job, by the prices of the platform."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from batchinference.rendering import Names
from batchinference.spec.report import PodPrices
from batchinference_operator.reconcile.attempt_objects import create_actions
from batchinference_operator.reconcile.cost import Prices, add_cost, add_prices
from batchinference_operator.reconcile.job_view import JobView
from support.documents.minimal import model_step
from support.documents.parsed import job
from support.operator.objects import CONFIG, UID, job_body
from support.operator.rendered import render

PRICES = Prices(currency="EUR", cpuHour="0.04", deviceHour="2.5")
USED = {"deviceSeconds": 7200, "cpuSeconds": 36_000}
"""5 EUR for GPUs and 0.40 EUR for CPUs."""


def running(rows: int, *, before: int = 0, **attempt: Any) -> dict[str, Any]:
    """Return the status of a job of 1,000 rows, of which the last attempt has finished `rows`."""
    last = {"number": 1, "rows": rows, **USED, **attempt}
    progress = {"rows": before + rows, "total": 1000}
    return {**USED, "progress": progress, "attempts": [last]}


@pytest.mark.parametrize(
    ("status", "cost"),
    [
        ({"attempts": []}, {"amount": "0.0000"}),
        (running(9), {"amount": "5.4000"}),
        (running(10), {"amount": "5.4000", "forecast": "540.0000"}),
        (running(500), {"amount": "5.4000", "forecast": "10.8000"}),
        # an earlier attempt, which finished 500 rows, caused half of the usage
        (
            running(250, before=500, deviceSeconds=3600, cpuSeconds=18_000),
            {"amount": "5.4000", "forecast": "8.1000"},
        ),
        ({**running(500), "completionTime": "2026-01-01T00:00:00Z"}, {"amount": "5.4000"}),
        ({**running(500), "progress": {"rows": 500}}, {"amount": "5.4000"}),
    ],
    ids=["nothing used", "below 1 %", "1 %", "half", "resumed", "ended", "unknown total"],
)
def test_forecast_is_the_cost_per_row_of_the_last_attempt(
    status: dict[str, Any], cost: dict[str, Any]
) -> None:
    assert add_cost(status, PRICES)["cost"] == {**cost, "currency": "EUR"}


def test_status_has_no_cost_without_prices() -> None:
    priced = add_cost(running(500), PRICES)
    assert add_cost(priced, Prices()) == running(500)


def prices_for_driver(ray_job: dict[str, Any]) -> PodPrices | None:
    """Return the prices that the driver of a RayJob reads."""
    head = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    env = head["containers"][0]["env"]
    return PodPrices.of({one["name"]: one.get("value", "") for one in env})


def test_driver_gets_the_price_of_each_pod() -> None:
    """The head has a CPU, and the autoscaler 0.05 CPUs."""
    steps = [model_step(resources={"gpu": 1, "cpu": 2}, replicas={"min": 1, "max": 2})]
    ray_job = render(job(steps=steps, cluster={"workers": {"cpu": 4}})).ray_job
    add_prices(ray_job, PRICES, {})
    prices = prices_for_driver(ray_job)
    assert prices is not None
    expected = {"head": 1.05 * 0.04, "cpu": 4 * 0.04, "embed": 2 * 0.04 + 2.5}
    assert prices.per_hour == pytest.approx(expected)
    assert (prices.currency, prices.before) == ("EUR", 0.0)


def test_pods_with_lower_requests_are_priced_by_their_requests() -> None:
    cluster = {"workers": {"cpu": 4}, "requests": {"cpu": 0.5}}
    ray_job = render(job(steps=[model_step()], cluster=cluster)).ray_job
    add_prices(ray_job, PRICES, {})
    prices = prices_for_driver(ray_job)
    assert prices is not None
    assert prices.per_hour["cpu"] == pytest.approx(0.5 * 0.04)


def test_container_that_the_api_server_will_refuse_has_no_price() -> None:
    ray_job = render(job(steps=[model_step()])).ray_job
    head = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    head["containers"].append({"name": "log", "resources": {"requests": {"cpu": "100mi"}}})
    add_prices(ray_job, PRICES, {})
    assert prices_for_driver(ray_job) is None


@pytest.mark.parametrize(("prices", "before"), [(PRICES, 5.4), (Prices(), None)])
def test_next_attempt_gets_the_cost_of_the_earlier_ones(
    prices: Prices, before: float | None
) -> None:
    again = JobView.of(job_body(status=running(500)))
    names, now = Names("job", UID, 2), datetime(2026, 3, 1, tzinfo=UTC)
    _, ray_job = create_actions(again, names, replace(CONFIG, prices=prices), now).create
    result = prices_for_driver(ray_job)
    assert (result.before if result else None) == before
