"""Writes which tests passed and failed, for the landing (see landing/outcomes.py)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

DIRECTORY = "PYTEST_OUTCOMES"
"""The environment variable that names the folder to write into."""
ABORTED = {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR}
_XDIST_GROUP = re.compile(r"@[\w-]+$")
"""The suffix that pytest-xdist appends to the id of a test in a group."""


def pytest_configure(config: pytest.Config) -> None:
    directory = os.environ.get(DIRECTORY)
    if directory and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(Path(directory)))


def test_id(report: pytest.TestReport) -> str:
    """Return the id that selects the test in another run of pytest."""
    return _XDIST_GROUP.sub("", report.nodeid)


class _Recorder:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._expected: set[str] = set()
        self._reported: set[str] = set()
        self._passed: set[str] = set()
        self._failed: dict[str, None] = {}
        self._crashed = False
        """Whether a worker of pytest-xdist has died."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Expect the tests of a worker: the main process of pytest-xdist collects none itself."""
        self._expected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = test_id(report)
        self._reported.add(report.nodeid)
        self._crashed |= report.when not in ("setup", "call", "teardown")
        if report.failed:
            self._failed[name] = None
        elif report.when == "call" and report.passed:
            self._passed.add(name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        outcomes = {
            "passed": len(self._passed - set(self._failed)),
            "failed": list(self._failed),
            "complete": exitstatus not in ABORTED
            and not self._crashed
            and self._expected <= self._reported,
        }
        (self._directory / f"{os.getpid()}.json").write_text(json.dumps(outcomes))
