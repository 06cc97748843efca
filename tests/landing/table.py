"""The report at the end of a landing: a table of step, seconds and budget, and the flaky tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from landing.steps import Result
from landing.suite import SuiteResult


def report(results: Sequence[SuiteResult], budgets: Mapping[str, float], factor: float) -> str:
    """Return the report. `budgets` are in seconds on the reference machine, by step."""
    head = f"{'step':<18}{'seconds':>8}{'budget':>8}  result"
    rows = [_row(each.result, budgets[each.result.step] * factor) for each in results]
    foot = f"machine: {factor:.2f} times the reference's seconds, by which budgets are multiplied"
    flaky = [f"FLAKY  {test} failed and passed when it was run again"
             for each in results for test in each.flaky]  # fmt: skip
    return "\n".join([head, *rows, foot, *flaky])


def _row(result: Result, budget: float) -> str:
    over = " OVER" if result.seconds > budget else ""
    note = f" ({result.note})" if result.note else ""
    return f"{result.step:<18}{result.seconds:>8.0f}{budget:>8.0f}  {result.outcome}{over}{note}"
