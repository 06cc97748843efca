"""A hanging test ends within the deadlines of its suite, and its output is printed."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from landing.steps import Result, Step, run_command
from landing.suite import SuiteResult, run_suite

TESTS = Path(__file__).parents[2]
TEST = """
import os, signal, time
import pytest

def test_passes(): pass

@pytest.fixture
def cluster():
    print("the cluster starts", flush=True)
    {setup}

@pytest.mark.timeout({timeout}, func_only=True)
def test_hangs(cluster):
    print("the job is created", flush=True)
    time.sleep(600)
"""
"""A suite with a deadline for each test but not for its fixtures, as tests/e2e has."""


INTERRUPT = "os.killpg(0, signal.SIGINT); time.sleep(600)"
"""What happens at the deadline of the suite (see test_steps.py)."""


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Let child processes receive SIGINT, even if a shell has started pytest in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(
    directory: Path, *options: str, setup: str = "pass", timeout: float = 600
) -> tuple[SuiteResult, str]:
    """Run the suite as a step of the landing, and return its result and what it printed."""
    (directory / "test_suite.py").write_text(TEST.format(setup=setup, timeout=timeout))
    (directory / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    plugins = "xdist.plugin,pytest_timeout"
    env = {"PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": plugins}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins take seconds to import
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(directory))
    out = io.StringIO()

    def execute(step: Step, outcomes: dict[str, str]) -> Result:
        return run_command(step, 120, {**os.environ, **env, **outcomes}, out)

    step = Step("e2e", command, budget=1, is_suite=True)
    return run_suite(step, execute, lambda tests: [*command, "-k", "test_hangs"]), out.getvalue()


def test_hanging_test_fails_at_its_own_deadline(tmp_path: Path) -> None:
    """The other tests run, and the hanging one runs again as any other that failed."""
    result, printed = run(tmp_path, "-n1", timeout=1)
    assert (result.result.outcome, result.passed) == ("failed", 1)
    assert [test.partition("::")[2] for test in result.failed] == ["test_hangs"]
    assert printed.count("test session starts") == 2
    assert "the job is created" in printed
    assert "time.sleep(600)" in printed


def test_suite_that_hangs_in_a_fixture_shows_where(tmp_path: Path) -> None:
    """It was interrupted, so nobody knows which tests would fail, and none runs again."""
    result, printed = run(tmp_path, "-n1", setup=INTERRUPT)
    assert result.result.outcome == "failed"
    assert printed.count("test session starts") == 1
    assert "interrupted: test_suite.py::test_hangs" in printed
    assert "the cluster starts" in printed
    assert "time.sleep(600)" in printed
