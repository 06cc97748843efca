"""Gives damaged files to a worker, and keeps the files that cause a problem."""

from __future__ import annotations

import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.fuzzing.mutations import damaged
from support.fuzzing.seeds import Target

MAX_MEMORY = 1 << 30
MAX_SECONDS = 20.0
"""Maximum CPU time for a file."""
HANGS_AFTER, STARTS_WITHIN = 90.0, 250.0
"""Seconds to wait for an answer. They are long because other processes may use the CPU."""
KEPT = Path(tempfile.gettempdir()) / "batchinference-fuzz"
"""The directory in which files that cause a problem are kept."""


class Worker:
    """A process that reads files. It is restarted after a file has ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def problem(self, request: dict[str, Any]) -> str | None:
        """Read a file, and return the problem that this causes, or None."""
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = self._line(process, HANGS_AFTER)
        if line is None:
            self.stop()
            return f"there is no answer after {HANGS_AFTER:g} s"
        if not line:
            code = process.wait()
            self.stop()
            return f"the process ends with {signal.Signals(-code).name if code < 0 else code}"
        answer = json.loads(line)
        if answer["seconds"] > MAX_SECONDS:
            return f"it takes {answer['seconds']:.0f} s"
        if answer["failed"]:
            return f"the job fails: {answer['told']}"
        if answer["memory"] > MAX_MEMORY:
            return f"it takes {answer['memory'] >> 20} MiB of memory"
        return None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.fuzzing.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            if self._line(self._process, STARTS_WITHIN) != "ready\n":
                raise RuntimeError("the worker does not start")
        return self._process

    def _line(self, process: subprocess.Popen[str], seconds: float) -> str | None:
        """Return the worker's answer: empty if the worker has ended, None after the timeout."""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
            if not selector.select(seconds):
                return None
        assert process.stdout is not None
        return process.stdout.readline()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None


def fuzz(worker: Worker, target: Target, directory: Path, files: int, seed: int) -> list[str]:
    """Read this many damaged files, and return the problems with the paths of the kept files."""
    found = []
    contents = [content for _, content in target.files]
    for number in range(files):
        chance = random.Random(f"{target.format} {seed} {number}")
        ending, content = chance.choice(target.files)
        path = directory / f"fuzzed.{ending}"
        path.write_bytes(damaged(chance, target.format, content, contents))
        request = {"format_": target.format, "path": str(path), "options": target.options}
        if (problem := worker.problem(request)) is not None:
            KEPT.mkdir(exist_ok=True)
            kept = KEPT / f"{target.format}-{seed}-{number}.{ending}"
            shutil.copy(path, kept)
            found.append(f"{kept}: {problem}")
    return found
