"""Runs one step of the landing: a command with a budget and a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

POLL_SECONDS = 0.2
"""How often a running command is checked for its end."""
GRACE_SECONDS = 30.0
"""How long an interrupted command has to print its report before it is killed."""


@dataclass(frozen=True)
class Step:
    """A command of the landing. It starts once the steps named in `after` have passed."""

    name: str
    command: tuple[str, ...]
    budget: float
    """Seconds on the reference machine."""
    after: tuple[str, ...] = ()
    is_suite: bool = False
    """Whether it runs pytest."""
    cold: float = 0.0
    """Seconds that it may take on a machine where nothing is installed or built yet."""
    retry: bool = True
    """Whether a few failed tests may run again."""
    long_group: str = ""
    """The group of the long tier that it runs."""

    @property
    def deadline(self) -> float:
        """Seconds after which the step counts as hanging, on the reference machine."""
        return max(2 * self.budget, self.cold)


@dataclass(frozen=True)
class Result:
    """How a step ended."""

    step: str
    outcome: str
    """`passed`, `failed`, `timed out` or `not run`."""
    seconds: float = 0.0
    note: str = ""

    @property
    def summary(self) -> str:
        """The outcome, with the note in parentheses."""
        return f"{self.outcome} ({self.note})" if self.note else self.outcome

    @property
    def ok(self) -> bool:
        return self.outcome == "passed"


NOT_RUN = "not run"
INTERRUPTED = threading.Event()
"""Set to stop all running commands. Each step then counts as failed."""


def run_command(
    step: Step,
    deadline: float,
    env: Mapping[str, str],
    out: TextIO = sys.stdout,
    grace: float = GRACE_SECONDS,
) -> Result:
    """Run the step's command and return its result.

    Each line of output is printed immediately, after the step's name. After `deadline` seconds, or
    when INTERRUPTED is set, the command's process group gets SIGINT, on which pytest prints its
    report, and after `grace` seconds SIGKILL.
    """
    begin = time.monotonic()
    process = subprocess.Popen(
        step.command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **env},
        start_new_session=True,
    )
    printer = threading.Thread(target=_print_lines, args=(process, step.name, out), daemon=True)
    printer.start()
    timed_out = not _ends_within(process, deadline)
    if timed_out:
        _stop(process, grace)
    printer.join(timeout=grace)
    outcome = "timed out" if timed_out else "failed" if process.returncode else "passed"
    seconds = time.monotonic() - begin
    note = f"killed after {seconds:.0f} s" if timed_out else ""
    return Result(step.name, outcome, seconds, note)


def _print_lines(process: subprocess.Popen[str], name: str, out: TextIO) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        out.write(f"{name:>7} | {line.rstrip()}\n")
        out.flush()


def _ends_within(process: subprocess.Popen[str], seconds: float) -> bool:
    """Return whether the process ends within these seconds, and before INTERRUPTED is set."""
    end = time.monotonic() + seconds
    while process.poll() is None:
        left = end - time.monotonic()
        if left <= 0 or INTERRUPTED.wait(min(left, POLL_SECONDS)):
            return process.poll() is not None
    return True


def _stop(process: subprocess.Popen[str], grace: float) -> None:
    """Interrupt the process group, and kill it after `grace` seconds at the latest."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
