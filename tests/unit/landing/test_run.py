"""A step runs when the steps before it have passed. A landing fails for each of its reasons."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import landing.__main__ as program
from landing.long_tier import Due, Group
from landing.plan import plan
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


def test_steps_run_within_their_deadlines_and_not_behind_a_failed_step() -> None:
    result, deadlines = outcomes(set())
    assert set(result.values()) == {"passed"}
    assert set(deadlines.values()) == {2 * 10 * 1.5}
    assert max(outcomes(set(), seconds=5)[1].values()) <= 5
    result, _ = outcomes({"lint"})
    assert result == {"setup": "passed", "lint": "failed", "e2e": "passed", "chaos": "not run"}


def test_steps_without_a_common_predecessor_overlap() -> None:
    together = threading.Barrier(2)

    def execute(step: Step, deadline: float, env: dict[str, str]) -> Result:
        if step.name in ("lint", "e2e"):
            together.wait(60)
        return Result(step.name, "passed")

    results = Landing(PLAN, 100, 1.0, execute).run()
    assert failures(results, [], 1, 2) == []


def test_second_run_of_a_suite_has_the_rest_of_the_deadline() -> None:
    deadlines: list[float] = []

    def execute(step: Step, deadline: float, env: dict[str, str]) -> Result:
        deadlines.append(deadline)
        result = {"passed": 1, "failed": ["test_a.py::test_a"], "complete": True}
        (Path(env["PYTEST_OUTCOMES"]) / "1.json").write_text(json.dumps(result))
        return Result(step.name, "failed", seconds=15)

    Landing([Step("test", (), 10, is_suite=True)], 100, 1.0, execute).run()
    assert deadlines == [20, 5]


def test_step_whose_command_is_missing_fails() -> None:
    (result,) = Landing([Step("cluster", ("no-such-command",), 10)], 100, 1.0).run()
    assert result.result.summary == (
        "failed ([Errno 2] No such file or directory: 'no-such-command')"
    )


FUZZ = Group("fuzz", ("make", "long"), 4, (), "2026-01-01")


@pytest.mark.parametrize(("name", "options"), [("test", ()), ("long:fuzz", ("--long", "fuzz"))])
def test_failed_tests_run_again_in_their_tier(name: str, options: tuple[str, ...]) -> None:
    commands: list[tuple[str, ...]] = []

    def execute(step: Step, deadline: float, env: dict[str, str]) -> Result:
        commands.append(tuple(step.command))
        failed = ["tests/test_a.py::test_a"] if len(commands) == 1 else []
        result = {"passed": 1, "failed": failed, "complete": True}
        (Path(env["PYTEST_OUTCOMES"]) / "1.json").write_text(json.dumps(result))
        return Result(step.name, "failed" if failed else "passed")

    (step,) = [step for step in plan([Due(FUZZ, 1, changed=False)]) if step.name == name]
    Landing([replace(step, after=())], 100, 1.0, execute).run()
    again = (".venv/bin/python", "-m", "pytest", "tests/test_a.py::test_a", *options)
    assert commands[1] == again


FLAKY = """
import json, os, pathlib
folder = pathlib.Path(os.environ["PYTEST_OUTCOMES"])
passed = pathlib.Path("again").exists()
pathlib.Path("again").touch()
found = {"passed": 2, "failed": [] if passed else ["a", "b"], "complete": True}
(folder / "1.json").write_text(json.dumps(found))
raise SystemExit(not passed)
"""
"""A suite of which two tests fail in the first run only."""


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("passes", {}, None),
        ("overdue", {"landing_days": lambda: [f"2026-03-{day:02}" for day in range(1, 13)]},
         "FAILED long:group: has not passed for 12 landings (at most 10)"),
        ("late", {"time": SimpleNamespace(monotonic=itertools.count(0, 100_000).__next__)},
         "FAILED total: took 100000 s"),
        ("flaky", {}, "FAILED flaky: 4 tests passed only on retry (at most 2)"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)  # fmt: skip
def test_landing_fails_for_each_of_its_reasons(
    name: str,
    settings: dict[str, Any],
    reason: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    suite = Step("test", (sys.executable, "-c", FLAKY), 60, is_suite=True)
    other = replace(suite, name="e2e", command=(*suite.command[:2], FLAKY.replace("again", "e2e")))
    suites = [suite, other] if name == "flaky" else [suite]
    monkeypatch.setattr("landing.run._tests_again", lambda *_: suite.command)
    defaults = {"measured_seconds": lambda: 1.0, "landing_days": list, "plan": lambda _: suites,
                "guarded_hash": lambda _: "same", "choose": lambda *_: [],
                "is_shallow": lambda: name == "passes"}  # fmt: skip
    for attribute, value in (defaults | settings).items():
        monkeypatch.setattr(program, attribute, value)
    groups = [Group("group", (), 1, (), added="2026-02-28")]
    assert program.run_landing(groups) == (reason is not None)
    printed = capsys.readouterr().out
    assert printed.count("FAILED ") == (reason is not None)
    assert (reason or "") in printed
    assert "FLAKY  a failed and passed when it was run again" in printed
    assert ("this clone is shallow" in printed) == (name == "passes")
