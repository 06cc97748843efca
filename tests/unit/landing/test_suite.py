"""Failed tests run a second time. A test that passes then is flaky."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from landing.plan import TOTAL_BUDGET, plan
from landing.steps import Result, Step
from landing.suite import NEVER_FLAKY, SuiteResult, run_suite
from landing.table import report
from landing.verdict import failures

ROOT = Path(__file__).parents[3]
SUITE = Step("test", ("all",), 10, is_suite=True)
PASSED = {"passed": 7, "failed": [], "complete": True}


class Runs:
    """Consecutive runs of pytest, each with the given failures."""

    def __init__(
        self,
        *failed: Sequence[str],
        outcome: str = "failed",
        complete: bool = True,
        passed_again: int = 7,
    ) -> None:
        self._failed = list(failed)
        self._outcome = outcome
        self._complete = complete
        self._passed = [7, passed_again]
        self.commands: list[tuple[str, ...]] = []

    def __call__(self, step: Step, env: dict[str, str]) -> Result:
        self.commands.append(step.command)
        failed = self._failed.pop(0)
        passed = self._passed.pop(0)
        outcomes = {"passed": passed, "failed": list(failed), "complete": self._complete}
        (Path(env["PYTEST_OUTCOMES"]) / "1.json").write_text(json.dumps(outcomes))
        return Result(step.name, self._outcome if failed else "passed", 5.0)


def run(runs: Runs) -> SuiteResult:
    return run_suite(SUITE, runs, lambda tests: ["again", *tests])


def test_passing_suite_runs_once() -> None:
    runs = Runs([])
    value = run(runs)
    assert (value.result.ok, value.passed, value.flaky, runs.commands) == (True, 7, (), [("all",)])


def test_test_that_passes_when_run_again_is_flaky() -> None:
    runs = Runs(["a", "b"], [])
    result = run(runs)
    assert runs.commands == [("all",), ("again", "a", "b")]
    assert result.result.ok
    assert result.result.seconds == 10.0
    assert result.flaky == ("a", "b")
    lines = report([result], {"test": 9.0}, factor=1.0).splitlines()
    assert "passed OVER" in lines[1]
    assert [line.split()[:2] for line in lines[3:]] == [["FLAKY", "a"], ["FLAKY", "b"]]


def test_test_that_fails_twice_fails_the_suite() -> None:
    result = run(Runs(["a", "b"], ["b"]))
    assert not result.result.ok
    assert result.failed == ("b",)


@pytest.mark.parametrize(
    "outcomes", [None, {"passed": 0, "failed": [], "complete": True}, {**PASSED, "complete": False}]
)
def test_suite_that_does_not_report_its_tests_fails(outcomes: dict[str, Any] | None) -> None:
    """For example, a test has called `os._exit(0)`."""

    def exit_with_zero(step: Step, env: dict[str, str]) -> Result:
        if outcomes is not None:
            (Path(env["PYTEST_OUTCOMES"]) / "1.json").write_text(json.dumps(outcomes))
        return Result(step.name, "passed")

    result = run_suite(SUITE, exit_with_zero, again=list).result
    assert (result.outcome, result.note) == ("failed", "not all tests were reported")


def test_test_that_is_skipped_when_run_again_is_not_flaky() -> None:
    runs = Runs(["a", "b"], [], passed_again=1)
    result = run(runs)
    assert (result.result.outcome, result.flaky) == ("failed", ())
    (reason,) = failures([result], [], seconds=1, limit=2)
    assert reason == "test: failed (not all failed tests ran again)\n  a\n  b"


@pytest.mark.parametrize(
    ("failed", "fields"),
    [
        (["a", "b", "c"], {}),
        (["a"], {"complete": False}),
        (["a"], {"outcome": "timed out"}),
        (["test_a.py::test_b", "tests/pipeline/jobs/test_crash_points.py::test_c"], {}),
    ],
)
def test_suite_whose_failures_may_not_be_flaky_is_not_run_again(
    failed: list[str], fields: dict[str, Any]
) -> None:
    """Too many failed, it was aborted or timed out, or a test of the commit protocol failed."""
    runs = Runs(failed, **fields)
    result = run(runs)
    assert (result.result.ok, result.failed) == (False, tuple(failed))
    assert runs.commands == [("all",)]


def test_files_of_the_commit_protocol_exist() -> None:
    for part in NEVER_FLAKY:
        assert list((ROOT / "tests/pipeline/jobs").glob(f"{part.strip('/')}*")), part


def test_failed_chaos_is_not_run_again() -> None:
    (chaos,) = [step for step in plan([]) if step.name == "chaos"]
    runs = Runs(["a"])
    assert not run_suite(chaos, runs, again=list).result.ok
    assert runs.commands == [("make", "chaos")]


def test_more_than_two_flaky_tests_fail_the_landing() -> None:
    results = [run(Runs(["a", "b"], [])), run(Runs(["c"], []))]
    (reason,) = failures(results, [], seconds=1, limit=2)
    assert reason == "flaky: 3 tests passed only on retry (at most 2)."
    assert failures(results[:1], [], seconds=1, limit=2) == []


def test_landing_that_takes_more_than_45_minutes_fails() -> None:
    results = [run(Runs([]))]
    assert failures(results, [], seconds=45 * 60, limit=TOTAL_BUDGET) == []
    (reason,) = failures(results, [], seconds=45 * 60 + 1, limit=TOTAL_BUDGET)
    assert reason.startswith("total: took 2701 s (at most 2700).")
