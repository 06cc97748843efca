"""Runs the steps of a landing, each as soon as the steps before it have passed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from landing.steps import NOT_RUN, Result, Step, run_command
from landing.suite import SuiteResult, run_suite
from support.timeouts import FACTOR

RunCommand = Callable[[Step, float, dict[str, str]], Result]


class Landing:
    """One run of all steps within `seconds`."""

    def __init__(
        self, plan: Sequence[Step], seconds: float, factor: float, execute: RunCommand = run_command
    ) -> None:
        self._plan = plan
        self._end = time.monotonic() + seconds
        self._factor = factor
        self._run_command = execute
        self._running: dict[str, Future[SuiteResult]] = {}
        self._used: dict[str, float] = {}
        """The seconds that the runs of each step have taken. A suite may run twice."""

    def run(self) -> list[SuiteResult]:
        """Run all steps and return their results in the order of the plan.

        In the plan, each step must come after the steps that it needs.
        """
        with ThreadPoolExecutor(len(self._plan)) as pool:
            for step in self._plan:
                self._running[step.name] = pool.submit(self._run_step, step)
        return [self._running[step.name].result() for step in self._plan]

    def _run_step(self, step: Step) -> SuiteResult:
        if not all(self._running[name].result().result.ok for name in step.after):
            return SuiteResult(Result(step.name, NOT_RUN))
        try:
            if step.is_suite:
                return run_suite(step, self._execute, partial(_tests_again, step))
            return SuiteResult(self._execute(step, {}))
        except (OSError, ValueError) as error:  # a missing command, or outcomes that are damaged
            return SuiteResult(Result(step.name, "failed", note=str(error)))

    def _execute(self, step: Step, env: dict[str, str]) -> Result:
        """Run a step. All its runs together end at its deadline, or at that of the landing."""
        used = self._used.get(step.name, 0.0)
        left = min(step.deadline * self._factor - used, self._end - time.monotonic())
        env = {**env, FACTOR: f"{self._factor:.2f}"}
        result = self._run_command(step, max(1.0, left), env)
        self._used[step.name] = used + result.seconds
        return result


def _tests_again(step: Step, tests: Sequence[str]) -> list[str]:
    """Return the command that runs tests of a step again. Tests of a group of the long tier keep
    their number of examples."""
    options = ["--long", step.long_group] if step.long_group else []
    return [f"{os.environ.get('VENV', '.venv')}/bin/python", "-m", "pytest", *tests, *options]
