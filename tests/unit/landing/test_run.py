"""A step runs when the steps before it have passed."""

from __future__ import annotations

import threading

from landing.run import Landing
from landing.steps import Result, Step
from landing.verdict import failures

PLAN = [
    Step("setup", (), 10),
    Step("lint", (), 10, after=("setup",)),
    Step("e2e", (), 10, after=("setup",)),
    Step("chaos", (), 10, after=("lint", "e2e")),
]


def outcomes(failing: set[str], seconds: float = 1000.0) -> tuple[dict[str, str], dict[str, float]]:
    """Run PLAN and return the outcome and the deadline of each step. Only `failing` steps fail."""
    deadlines: dict[str, float] = {}

    def execute(step: Step, deadline: float, env: dict[str, str]) -> Result:
        deadlines[step.name] = deadline
        return Result(step.name, "failed" if step.name in failing else "passed")

    results = Landing(PLAN, seconds, 1.5, execute).run()
    return {each.result.step: each.result.outcome for each in results}, deadlines


def test_all_steps_pass() -> None:
    found, deadlines = outcomes(set())
    assert set(found.values()) == {"passed"}
    assert set(deadlines.values()) == {2 * 10 * 1.5}


def test_steps_behind_a_failed_step_are_not_run() -> None:
    found, _ = outcomes({"lint"})
    assert found == {"setup": "passed", "lint": "failed", "e2e": "passed", "chaos": "not run"}


def test_no_step_outlives_the_landing() -> None:
    _, deadlines = outcomes(set(), seconds=5)
    assert max(deadlines.values()) <= 5


def test_steps_without_a_common_predecessor_overlap() -> None:
    together = threading.Barrier(2)

    def execute(step: Step, deadline: float, env: dict[str, str]) -> Result:
        if step.name in ("lint", "e2e"):
            together.wait(60)
        return Result(step.name, "passed")

    results = Landing(PLAN, 100, 1.0, execute).run()
    assert failures(results, [], 1, 2) == []
