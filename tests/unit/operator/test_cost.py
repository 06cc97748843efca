"""The cost of a job, by the prices of the platform."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference_operator.reconcile.cost import Prices, add_cost
from batchinference_operator.status.job_status import without_newer_fields

PRICES = Prices(currency="EUR", cpuHour=0.04, gpuHour=2.5)
USED = {"gpuSeconds": 7200, "cpuSeconds": 36_000}
"""5 EUR for GPUs and 0.40 EUR for CPUs."""


def running(rows: int, *, before: int = 0, **attempt: Any) -> dict[str, Any]:
    """Return the status of a job of 1,000 rows, of which the last attempt has finished `rows`."""
    last = {"number": 1, "rows": rows, **USED, **attempt}
    progress = {"rows": before + rows, "total": 1000}
    return {**USED, "progress": progress, "attempts": [last]}


@pytest.mark.parametrize(
    ("status", "cost"),
    [
        ({"attempts": []}, {"amount": 0.0}),
        (running(9), {"amount": 5.4}),
        (running(10), {"amount": 5.4, "forecast": 5.4 * 100}),
        (running(500), {"amount": 5.4, "forecast": 10.8}),
        # an earlier attempt, which finished 500 rows, caused half of the usage
        (
            running(250, before=500, gpuSeconds=3600, cpuSeconds=18_000),
            {"amount": 5.4, "forecast": 5.4 + 2.7},
        ),
        ({**running(500), "completionTime": "2026-01-01T00:00:00Z"}, {"amount": 5.4}),
        ({**running(500), "progress": {"rows": 500}}, {"amount": 5.4}),
    ],
    ids=["nothing used", "below 1 %", "1 %", "half", "resumed", "ended", "unknown total"],
)
def test_forecast_is_the_cost_per_row_of_the_last_attempt(
    status: dict[str, Any], cost: dict[str, Any]
) -> None:
    assert add_cost(status, PRICES)["cost"] == pytest.approx({**cost, "currency": "EUR"})


def test_status_has_no_cost_without_prices() -> None:
    priced = add_cost(running(500), PRICES)
    assert add_cost(priced, Prices()) == running(500)


def test_older_definition_gets_no_cost() -> None:
    """It would reject the whole status."""
    assert "cost" not in without_newer_fields(add_cost(running(500), PRICES))
