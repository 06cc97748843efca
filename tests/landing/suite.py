"""Runs a step that is a test suite, and runs a few failed tests a second time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from landing.outcomes import Outcomes, read_outcomes
from landing.steps import Result, Step

Run = Callable[[Step, dict[str, str]], Result]
"""Runs a step with additional environment variables."""
MAX_FLAKY = 2
"""The maximum number of flaky tests in a landing: tests that pass only in the second run."""


@dataclass(frozen=True)
class SuiteResult:
    """The result of a suite, and its tests."""

    result: Result
    passed: int = 0
    failed: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()


def run_suite(step: Step, run: Run, again: Callable[[Sequence[str]], Sequence[str]]) -> SuiteResult:
    """Run the suite. If at most MAX_FLAKY tests fail, run these again: a pass is a flaky test.

    `again` returns the command that runs the given tests. No test is run again if the suite was
    aborted or timed out.
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
