"""Lets a worker read damaged files, and keeps the files that cause a problem."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.fuzzing.mutations import damaged_file
from support.fuzzing.seeds import target

HANGS_AFTER, STARTS_WITHIN = 90.0, 250.0
"""Seconds to wait for a line. They are long because other processes may use the CPU."""
FILES_PER_PROCESS = 1000
"""Files after which a worker is restarted. Its memory allocators reserve address space for each of
the threads that read them, so a worker would reach its limit after some thousand files."""
KEPT = Path(tempfile.gettempdir()) / "batchinference-fuzz"
"""The directory in which files that cause a problem are kept."""


class Worker:
    """A process that reads files. It is restarted after a file has ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lines = b""

    def problem(self, format_: str, path: Path, options: dict[str, Any]) -> str | None:
        """Read a file, and return the problem that this causes, or None."""
        self._send({"format_": format_, "path": str(path), "options": options})
        answer, ended = self._line(HANGS_AFTER)
        if ended:
            return ended
        self._line(HANGS_AFTER)
        found: str | None = json.loads(answer)
        return found

    def fuzz(self, name: str, directory: Path, files: int, seed: int) -> dict[int, str]:
        """Read this many damaged files, and return the problems by the numbers of their files."""
        found: dict[int, str] = {}
        number = -1
        while number + 1 < files:
            stop = min(number + 1 + FILES_PER_PROCESS, files)
            span = {"seed": seed, "start": number + 1, "stop": stop}
            self._send({"name": name, "directory": str(directory), **span})
            while True:
                line, ended = self._line(HANGS_AFTER)
                if ended:
                    found[number] = ended
                    break
                if line == "done":
                    if stop < files:
                        self.stop()
                    break
                if line.isdecimal():
                    number = int(line)
                else:
                    found[number] = json.loads(line)
        return found

    def _send(self, request: dict[str, Any]) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.fuzzing.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            if self._line(STARTS_WITHIN)[0] != "ready":
                raise RuntimeError("the worker does not start")
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def _line(self, seconds: float) -> tuple[str, str]:
        """Return the next line of the worker, or the reason if the worker has ended without one."""
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._lines:
                if not selector.select(seconds):
                    self.stop()
                    return "", f"there is no answer after {seconds:g} s"
                if not (more := os.read(self._process.stdout.fileno(), 1 << 16)):
                    code = self._process.wait()
                    self.stop()
                    ending = signal.Signals(-code).name if code < 0 else code
                    return "", f"the process ends with {ending}"
                self._lines += more
        line, _, self._lines = self._lines.partition(b"\n")
        return line.decode(), ""

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process, self._lines = None, b""


def fuzz(worker: Worker, name: str, directory: Path, files: int, seed: int) -> list[str]:
    """Read this many damaged files, and return the problems with the paths of the kept files."""
    problems = worker.fuzz(name, directory, files, seed)
    return [f"{_kept(name, directory, seed, number)}: {text}" for number, text in problems.items()]


def _kept(name: str, directory: Path, seed: int, number: int) -> Path:
    made = target(name, directory / "seeds")
    path = damaged_file(made, directory, seed, number)
    KEPT.mkdir(exist_ok=True)
    kept = KEPT / f"{made.format}-{seed}-{number}{path.suffix}"
    shutil.move(path, kept)
    return kept
