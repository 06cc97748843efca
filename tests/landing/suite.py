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
NEVER_FLAKY = (
    *("/test_bad_state.py", "/test_commits.py", "/test_concurrent_runs.py", "/test_crash_points"),
    *("/test_late_writers.py", "/test_retried_appends.py", "/test_row_coverage.py"),
    "/test_table_fences.py",
)
"""Parts of the paths of tests that never run again: a row that is lost once is not flaky."""


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
    aborted or timed out, or if the step or a failed test does not allow it.
    """
    result, outcomes = _recorded(step, run)
    may_be_flaky = 0 < len(outcomes.failed) <= MAX_FLAKY and not any(
        part in test for part in NEVER_FLAKY for test in outcomes.failed
    )
    if result.outcome != "failed" or not (step.retry and outcomes.complete and may_be_flaky):
        return SuiteResult(result, outcomes.passed, outcomes.failed)
    second, repeated = _recorded(replace(step, command=tuple(again(outcomes.failed))), run)
    both = replace(second, seconds=result.seconds + second.seconds)
    if second.ok and repeated.passed < len(outcomes.failed):
        both = replace(both, outcome="failed", note="not all failed tests ran again")
    if both.ok:
        flaky = outcomes.failed
        return SuiteResult(both, outcomes.passed + len(flaky), flaky=flaky)
    still = tuple(test for test in outcomes.failed if test in repeated.failed)
    return SuiteResult(both, outcomes.passed, still or repeated.failed or outcomes.failed)


def _recorded(step: Step, run: Run) -> tuple[Result, Outcomes]:
    """Run the suite and return its result and outcomes. It fails if not every test was reported."""
    with tempfile.TemporaryDirectory() as directory:
        result = run(step, {"PYTEST_OUTCOMES": directory})
        outcomes = read_outcomes(Path(directory))
    if result.ok and not (outcomes.complete and outcomes.passed):
        result = replace(result, outcome="failed", note="not all tests were reported")
    return result, outcomes
