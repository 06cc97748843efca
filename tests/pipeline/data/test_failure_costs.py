"""Failures cost little: twice as many take about twice as long, and one is no cliff."""

from __future__ import annotations

import pytest

from support.failure_costs import BY_NAME, measure

SLACK_SECONDS = 0.1
"""CPU seconds that a failure may take once, for example to import a module."""


@pytest.mark.parametrize("name", BY_NAME)
def test_failures_do_not_make_the_work_much_slower(name: str) -> None:
    cost = measure(BY_NAME[name])
    assert cost.twice < 3 * cost.many + SLACK_SECONDS, cost
    assert cost.one < 2 * cost.clean + SLACK_SECONDS, cost
