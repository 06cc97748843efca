"""The cost of a run, from the prices of its pods and the lifetimes of its Ray nodes."""

from __future__ import annotations

import time

import pytest

from batchinference.pipeline.execution import cost
from batchinference.pipeline.execution.cost import cost_of, cost_so_far
from batchinference.pipeline.ray_compat import NodeLifetime, node_lifetimes
from batchinference.plan.groups import GROUP_LABEL
from batchinference.spec.prices import PRICES_VARIABLE, PodPrices

PRICES = PodPrices(currency="EUR", perHour={"head": 0.5, "cpu": 2.0}, before=1.5)
NOW = 100_000.0


def node(group: str | None, hours: float, end: float | None = None) -> NodeLifetime:
    """Return a node of a group that has existed for some hours."""
    labels = {GROUP_LABEL: group} if group else {}
    return NodeLifetime(labels, (end or NOW) - 3600 * hours, end)


@pytest.mark.parametrize(
    ("nodes", "amount"),
    [
        ([], 0.0),
        ([node("head", 2), node("cpu", 1), node("cpu", 0.5)], 1.0 + 2.0 + 1.0),
        ([node("cpu", 1, end=NOW - 3600)], 2.0),
        ([node("other", 1), node(None, 1)], 0.0),
        ([node("cpu", -1)], 0.0),
    ],
)
def test_each_node_costs_its_price_while_it_exists(
    nodes: list[NodeLifetime], amount: float
) -> None:
    found = cost_of(PRICES, nodes, NOW)
    assert (found.amount, found.before, found.currency) == (f"{amount:.4f}", "1.5000", "EUR")


def test_cost_names_the_share_of_earlier_attempts() -> None:
    found = cost_of(PRICES, [node("cpu", 1)], NOW)
    assert str(found) == "3.50 EUR (2.00 in this run, 1.50 in earlier attempts)"
    assert str(found.model_copy(update={"before": 0.0})) == "2.00 EUR"


def test_run_has_no_cost_without_prices_or_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "node_lifetimes", lambda: 1 / 0)
    assert cost_so_far(None) is None
    assert cost_so_far(PRICES) is None


def test_prices_of_a_newer_operator_are_read() -> None:
    text = '{"currency": "EUR", "perHour": {"head": 0.5, "cpu": 2}, "before": 1.5, "newer": 1}'
    assert PodPrices.of({PRICES_VARIABLE: text}) == PRICES
    assert PodPrices.of({}) is None


@pytest.mark.usefixtures("one_ray")
def test_lifetimes_are_those_of_the_nodes_of_ray() -> None:
    (found,) = node_lifetimes()
    assert "ray.io/node-id" in found.labels
    assert found.end is None
    assert 0 < found.seconds(time.time()) < 24 * 3600
