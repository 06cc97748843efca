"""Decides whether a landing has failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from landing.long_tier import MAX_AGE, Due
from landing.suite import MAX_FLAKY, SuiteResult


def failures(
    results: Sequence[SuiteResult], dues: Iterable[Due], seconds: float, limit: float
) -> list[str]:
    """Return why the landing fails, one line for each reason. Empty if it passes."""
    passed = {each.result.step for each in results if each.result.ok}
    flaky = [test for each in results for test in each.flaky]
    steps = [*_failed_steps(results), *_overdue(dues, passed)]
    if len(flaky) > MAX_FLAKY:
        steps.append(f"flaky: {len(flaky)} tests passed only on retry (at most {MAX_FLAKY}).")
    if seconds > limit:
        steps.append(f"total: took {seconds:.0f} s (at most {limit:.0f}). Speed up what is OVER.")
    return steps


def _failed_steps(results: Sequence[SuiteResult]) -> Iterator[str]:
    for each in results:
        if not each.result.ok:
            tests = "".join(f"\n  {test}" for test in each.failed)
            yield f"{each.result.step}: {each.result.summary}{tests}"


def _overdue(dues: Iterable[Due], passed: set[str]) -> Iterator[str]:
    for due in dues:
        if due.age > MAX_AGE and due.group.step not in passed:
            name = due.group.name
            yield (
                f"{due.group.step}: has not passed for {due.age} landings (at most {MAX_AGE}). "
                f"Run `make long GROUP={name}` and commit tests/long-passed.json."
            )
