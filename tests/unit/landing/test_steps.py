"""A step's command runs within a deadline, and its output is printed immediately."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from landing import steps
from landing.steps import Result, Step, run_command
from support.cluster.kubectl import eventually

HANGS = "echo first line; sleep 600 & echo PID $!; wait"
IGNORES_INTERRUPTS = f"trap '' INT; {HANGS}"


class InterruptedBy(io.StringIO):
    """Output that interrupts all steps once it has a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def flush(self) -> None:
        if self._text in self.getvalue():
            steps.INTERRUPTED.set()


def run(script: str, deadline: float = 60.0, out: io.StringIO | None = None) -> tuple[Result, str]:
    out = out or io.StringIO()
    step = Step("suite", ("sh", "-c", script), budget=1)
    return run_command(step, deadline, {"GIVEN": "value"}, out, grace=0.2), out.getvalue()


def test_result_of_a_command_and_its_lines() -> None:
    result, printed = run("echo $GIVEN")
    assert result.ok
    assert printed == "  suite | value\n"
    assert run("exit 3")[0].outcome == "failed"
    assert run(HANGS, deadline=0.01)[0].outcome == "timed out"


@pytest.mark.parametrize("script", [HANGS, IGNORES_INTERRUPTS])
def test_interrupted_command_is_stopped_with_its_processes_and_its_output_kept(script: str) -> None:
    result, printed = run(script, deadline=300, out=InterruptedBy("PID"))
    steps.INTERRUPTED.clear()
    assert (result.outcome, result.seconds < steps.GRACE_SECONDS) == ("timed out", True)
    assert "first line" in printed
    started = printed.partition("PID ")[2].split()[0]
    eventually("its process has ended", lambda: has_ended(started), 60, 0.02)


def has_ended(pid: str) -> bool:
    """Return whether a process has ended. Its parent may not have waited for it yet."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b""
    except (FileNotFoundError, ProcessLookupError):
        return True
