"""The command `batchinference` as a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep  # tests may patch those of the module

PROGRAM = Path(sys.executable).parent / "batchinference"
MARK = "TEST_COMMAND_MARK"
"""An environment variable that children inherit. It identifies them in any session."""
_RAY = {"RAY_worker_niceness": "0"}
"""The default of 15 would make Ray's workers wait for the tests of other processes."""


@dataclass
class Command:
    """One run of the program with these arguments. `env` is added to this process's variables."""

    arguments: list[str]
    directory: Path
    env: dict[str, str] = field(default_factory=dict)
    program: Path = PROGRAM
    _mark: str = field(default_factory=lambda: uuid.uuid4().hex, init=False)

    def start(self) -> subprocess.Popen[str]:
        """Start it in its own process group, as a shell does."""
        return subprocess.Popen(
            [str(self.program), *self.arguments],
            cwd=self.directory,
            env={**os.environ, **_RAY, **self.env, MARK: self._mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def run(self, stdin: str = "", timeout: float = 120) -> subprocess.CompletedProcess[str]:
        with self.start() as process:
            try:
                out, err = process.communicate(stdin, timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(self.arguments, process.returncode, out, err)

    def kill(self) -> None:
        """Kill all of its processes."""
        while processes := self.processes():
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            sleep(0.05)

    def processes(self, title: bytes = b"") -> list[int]:
        """Return the ids of this run's live processes whose command line begins with `title`."""
        mark = f"{MARK}={self._mark}".encode()
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit()
            and mark in _read(entry / "environ").split(b"\0")
            and _read(entry / "cmdline").startswith(title)
        ]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""  # the process has ended


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait for a condition, or fail with its name."""
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, f"waited {seconds:g} s for {what}"
        sleep(0.05)
