"""Runs a step that is a test suite, and single failed tests once more."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from landing.outcomes import Outcomes, read_outcomes
from landing.steps import Result, Step

Run = Callable[[Step, dict[str, str]], Result]
"""Runs a step with further environment variables."""
MAX_FLAKY = 2
"""How many tests of a landing may pass only when they are run again."""


@dataclass(frozen=True)
class SuiteResult:
    """A result with its tests."""

    result: Result
    passed: int = 0
    failed: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()


def run_suite(step: Step, run: Run, again: Callable[[Sequence[str]], Sequence[str]]) -> SuiteResult:
    """Run the suite. When at most MAX_FLAKY tests failed, run these again: a pass is a flaky test.

    `again` returns the command that runs given tests. A suite that was broken off, or that timed
    out, is not run again.
    """
    result, outcomes = _recorded(step, run)
    few = 0 < len(outcomes.failed) <= MAX_FLAKY
    if result.outcome != "failed" or not outcomes.complete or not few:
        return SuiteResult(result, outcomes.passed, outcomes.failed)
    second, repeated = _recorded(replace(step, command=tuple(again(outcomes.failed))), run)
    both = replace(second, seconds=result.seconds + second.seconds)
    still = tuple(test for test in outcomes.failed if test in repeated.failed)
    flaky = tuple(test for test in outcomes.failed if test not in still) if second.ok else ()
    return SuiteResult(both, outcomes.passed + len(flaky), still or repeated.failed, flaky)


def _recorded(step: Step, run: Run) -> tuple[Result, Outcomes]:
    with tempfile.TemporaryDirectory() as directory:
        result = run(step, {"PYTEST_OUTCOMES": directory})
        return result, read_outcomes(Path(directory))
