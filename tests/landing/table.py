"""The table at the end of a landing: step, seconds, budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from landing.steps import Result


def timing_table(results: Sequence[Result], budgets: Mapping[str, float], factor: float) -> str:
    """Return the table. `budgets` are in seconds on the reference machine, by step."""
    head = f"{'step':<18}{'seconds':>8}{'budget':>8}  result"
    rows = [_row(result, budgets[result.step] * factor) for result in results]
    foot = f"machine: {factor:.2f} times the reference's seconds, by which budgets are multiplied"
    return "\n".join([head, *rows, foot])


def _row(result: Result, budget: float) -> str:
    over = " OVER" if result.seconds > budget else ""
    note = f" ({result.note})" if result.note else ""
    return f"{result.step:<18}{result.seconds:>8.0f}{budget:>8.0f}  {result.outcome}{over}{note}"
