"""A pytest plugin that runs the tests of each mutant in a separate fork.

All forks share one collection. First, each test file runs without mutants. This measures the cost
of each test and the mutants that it reaches. Then each mutant is tested with the tests that reach
it.
"""

from __future__ import annotations

import builtins
import importlib
import itertools
import os
import resource
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from .code import HIT, Running, function_code
from .forks import CRASHED, TOO_LONG, in_forks
from .store import Mutant, Store

SERVERS = {"one_ray", "server", "s3"}
"""Fixtures that start a server. They are too slow to run for each mutant."""
REMOTE = {"s3", "gs", "az"}
BUDGET = 10.0
"""CPU seconds of tests for each mutant; the cheapest tests run first."""
FILE_SECONDS = 600
MUTANT_SECONDS = 180
BATCH = 10
REACHED: set[str] = set()
"""The mutants that the current test has reached."""
REACHED_BY_FIXTURES: set[str] = set()


def pytest_configure() -> None:
    hypothesis.settings.register_profile(
        "mutants",
        database=None,
        deadline=None,
        derandomize=True,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("mutants")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutants", type=Path, help="The folder of the mutants and the results.")
    parser.addoption("--mutants-scope", help="Which of the mutants.")
    parser.addoption("--mutants-jobs", type=int, help="The number of concurrent forks.")
    parser.addoption("--mutants-minutes", type=float, help="Start nothing new after that.")


def pytest_runtestloop(session: pytest.Session) -> bool:
    run = _Run(session)
    print(f"{len(run.items)} tests, {len(run.mutants)} mutants", flush=True)
    run.measure()
    run.strike()
    return True


def _needs_server(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    remote = any(isinstance(value, str) and value in REMOTE for value in parameters)
    return remote or bool(SERVERS & set(getattr(item, "fixturenames", ())))


class _Run:
    def __init__(self, session: pytest.Session) -> None:
        config = session.config
        self.store = Store(config.getoption("--mutants"))
        self.jobs = config.getoption("--mutants-jobs")
        self.end = time.monotonic() + 60 * config.getoption("--mutants-minutes")
        self.root = config.rootpath
        scope = config.getoption("--mutants-scope")
        self.mutants = [mutant for mutant in self.store.mutants if mutant.scope == scope]
        self.items = {item.nodeid: item for item in session.items if not _needs_server(item)}
        for module in {mutant.module for mutant in self.mutants}:
            importlib.import_module(module)
        self.running = Running({mutant.file for mutant in self.mutants})

    # --- the cost of each test and the mutants that it reaches

    def measure(self) -> None:
        by_file: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in self.items.values():
            by_file[item.nodeid.partition("::")[0]].append(item)
        files = [file for file in by_file if file not in self.store.measured]
        tasks = self._until_the_end([(file, by_file[file]) for file in files])
        for (file, _), tests in in_forks(tasks, self.jobs, self._measure_file, FILE_SECONDS):
            complete = tests not in (CRASHED, TOO_LONG)
            print(f"{file}: {len(tests) if complete else tests}", flush=True)
            self.store.keep_measured(file, tests if complete else {})

    def _measure_file(self, task: tuple[str, list[pytest.Item]], folder: Path) -> dict[str, Any]:
        _use(folder, task[1])
        self._instrument()
        tests = {}
        for item, following in _with_next(task[1]):
            REACHED.clear()
            cpu, wall = _cpu_seconds(), time.monotonic()
            passed = _passes(item, following)
            cpu, wall = _cpu_seconds() - cpu, time.monotonic() - wall
            tests[item.nodeid] = {"passed": passed, "cpu": cpu, "wall": wall, "reaches": [*REACHED]}
        for test in tests.values():
            test["reaches"] = sorted(REACHED_BY_FIXTURES.union(test["reaches"]))
        return tests

    def _instrument(self) -> None:
        setattr(builtins, HIT, REACHED.add)
        by_file: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for mutant in self.mutants:
            by_file[mutant.file].append((mutant.name, mutant.line))
        for file, lines in by_file.items():
            self.running.instrument((self.root / file).read_text(), file, lines)

    # --- the outcome of each mutant

    def strike(self) -> None:
        self.costs = {
            name: test
            for tests in self.store.measured.values()
            for name, test in tests.items()
            if test["passed"] and name in self.items
        }
        self.sound: dict[str, bool] = {}
        done = self.store.results
        waiting = [mutant for mutant in self.mutants if mutant.name not in done]
        for first in self._until_the_end(range(0, len(waiting), BATCH)):
            self._strike_batch(waiting[first : first + BATCH])

    def _strike_batch(self, batch: list[Mutant]) -> None:
        while batch:
            tasks = [(mutant, self._tests_of(mutant)) for mutant in batch]
            outcomes = [(task, "no tests") for task in tasks if not task[1]]
            reached = [task for task in tasks if task[1]]
            outcomes += in_forks(reached, self.jobs, self._strike_one, MUTANT_SECONDS)
            self._check({outcome for _, outcome in outcomes if outcome in self.items})
            batch = []
            for (mutant, tests), outcome in outcomes:
                if outcome in self.items and not self.sound[outcome]:
                    batch.append(mutant)
                else:
                    self.store.keep_result(mutant.name, outcome=outcome, tests=len(tests))
                    print(f"{mutant.name} {mutant.file}:{mutant.line} {outcome}", flush=True)

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """Return the cheapest tests that reach the mutant, as many as BUDGET allows."""
        reaching = [name for name, test in self.costs.items() if mutant.name in test["reaches"]]
        reaching = [name for name in reaching if self.sound.get(name, True)]
        reaching.sort(key=lambda name: (self.costs[name]["cpu"], name))
        totals = itertools.accumulate(self.costs[name]["cpu"] for name in reaching)
        return [name for name, total in zip(reaching, totals, strict=True) if total <= BUDGET]

    def _strike_one(self, task: tuple[Mutant, list[str]], folder: Path) -> str:
        mutant, names = task
        original = (self.root / mutant.file).read_text()
        where = mutant.file, mutant.function, mutant.nth
        self.running.replace(function_code(original, *where), function_code(mutant.source, *where))
        return self._first_failure(names, folder) or "survived"

    def _check(self, killers: set[str]) -> None:
        """Record for each killing test whether it passes alone without a mutant.

        A test that fails alone without a mutant does not count as killing any mutant.
        """
        unknown = sorted(killers - set(self.sound))
        for name, failed in in_forks(unknown, self.jobs, self._fails_alone, MUTANT_SECONDS):
            self.sound[name] = failed == "passed"

    def _fails_alone(self, name: str, folder: Path) -> str:
        return self._first_failure([name], folder) or "passed"

    def _first_failure(self, names: list[str], folder: Path) -> str | None:
        items = [self.items[name] for name in names]
        _use(folder, items)
        for item, following in _with_next(items):
            _limit(**self.costs[item.nodeid])
            if not _passes(item, following):
                return item.nodeid
        return None

    def _until_the_end(self, tasks: Iterable[Any]) -> Iterator[Any]:
        return itertools.takewhile(lambda _: time.monotonic() < self.end, tasks)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Record the mutants that fixtures reach. They count for all tests of the file.

    A fixture may serve several tests.
    """
    REACHED_BY_FIXTURES.update(REACHED)


def _use(folder: Path, items: list[pytest.Item]) -> None:
    """Set the folder for the temporary files of these tests."""
    for item in items[:1]:
        item.config._tmp_path_factory._given_basetemp = folder / "pytest"


def _with_next(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return itertools.zip_longest(items, items[1:])


def _passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    return all(report.passed for report in runtestprotocol(item, log=False, nextitem=following))


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _limit(cpu: float, wall: float, **_: Any) -> None:
    """End this process if its next test takes much longer than without a mutant."""
    soft = int(time.process_time() + 3 * cpu + 5)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
    signal.alarm(int(5 * wall + 30))
