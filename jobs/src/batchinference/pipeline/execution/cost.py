"""Estimates the cost of a run from the lifetimes of the nodes of its Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable

from batchinference.pipeline.ray_compat import NodeLifetime, node_lifetimes
from batchinference.plan.groups import GROUP_LABEL
from batchinference.spec.report import PodPrices, RunCost
from batchinference.text import decimal_text


def cost_so_far(prices: PodPrices | None) -> RunCost | None:
    """Return the cost of the Ray cluster until now; None without prices or an answer of Ray."""
    if prices is None:
        return None
    try:
        nodes = node_lifetimes()
    except Exception:  # noqa: BLE001 - the job does not depend on it
        return None
    return cost_of(prices, nodes, time.time())


def cost_of(prices: PodPrices, nodes: Iterable[NodeLifetime], now: float) -> RunCost:
    """Return the cost of nodes until `now` (seconds since 1970). Unknown groups cost nothing."""
    amount = sum(
        prices.per_hour.get(node.labels.get(GROUP_LABEL, ""), 0.0) * node.seconds(now) / 3600
        for node in nodes
    )
    return RunCost(
        amount=decimal_text(amount), before=decimal_text(prices.before), currency=prices.currency
    )
