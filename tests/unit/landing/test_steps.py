"""A step's command runs within a deadline, and its output is printed immediately."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from landing import steps
from landing.steps import Result, Step, run_command
from support.cluster.kubectl import eventually

HANGS = "import time; print('first line', flush=True); time.sleep(600)"
IGNORES_INTERRUPTS = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {HANGS}"


def run(code: str, deadline: float = 60.0) -> tuple[Result, str]:
    out = io.StringIO()
    step = Step("suite", (sys.executable, "-c", code), budget=1)
    return run_command(step, deadline, {"GIVEN": "value"}, out), out.getvalue()


def test_passing_command_passes_and_prints_its_lines() -> None:
    result, printed = run("import os; print(os.environ['GIVEN'])")
    assert result.ok
    assert printed == "  suite | value\n"


def test_failing_command_fails() -> None:
    result, _ = run("raise SystemExit(3)")
    assert result.outcome == "failed"


@pytest.mark.parametrize("code", [HANGS, IGNORES_INTERRUPTS])
def test_hanging_command_is_stopped_and_its_output_kept(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "GRACE_SECONDS", 0.5)
    result, printed = run(code, deadline=2.0)
    assert result.outcome == "timed out"
    assert "first line" in printed


def test_processes_that_a_hanging_command_started_are_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "GRACE_SECONDS", 0.5)
    child = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    started = f"{child}; print('PID', p.pid, flush=True); p.wait()"
    step = Step("suite", (sys.executable, "-c", started, IGNORES_INTERRUPTS), budget=1)
    out = io.StringIO()
    run_command(step, 3.0, {}, out)
    pid = int(out.getvalue().partition("PID ")[2].split()[0])
    eventually("the process is gone", lambda: not Path(f"/proc/{pid}").exists(), timeout=60)
