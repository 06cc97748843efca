"""Prints the time of a run: seconds by folder, and the slowest tests."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath

import pytest

from plugins.outcomes import test_id

SLOWEST = 15
FOLDERS = 12


class _Durations:
    def __init__(self) -> None:
        self.by_test: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_test[test_id(report)] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        by_folder: dict[str, float] = defaultdict(float)
        for name, seconds in self.by_test.items():
            by_folder[str(PurePosixPath(name.partition("::")[0]).parent)] += seconds
        terminalreporter.section("seconds by folder, and the slowest tests")
        for name, seconds in [*_largest(by_folder, FOLDERS), *_largest(self.by_test, SLOWEST)]:
            terminalreporter.line(f"{seconds:8.1f} s  {name}")


def _largest(seconds: dict[str, float], count: int) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: item[1], reverse=True)[:count]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--timing", action="store_true", help="Print where the time went.")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--timing") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Durations())
