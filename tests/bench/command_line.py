"""Measures the CPU time and the peak memory of commands that start no Ray.

CPU time is measured for the process, in user and system mode. The limits are for the reference
machine: the CPU time of a fixed amount of work is measured first, and gives the factor of this
machine.
`make command-line` runs this.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from rounds import ROUNDS
from stop_signals import exit_on_signals

from batchinference.spec.progress import Counts
from landing.calibration import machine_factor, measured_cpu_seconds
from support.documents.minimal import document, model_step, python_step
from support.jobs.command import PROGRAM
from support.jobs.without_ray import run_without_ray

USAGE = Path(__file__).with_name("command_usage.py")
FILES = 100
OUTPUTS = [(1, 0), (1, 10_000), (1000, 10), (1000, 10_000)]
"""The numbers of files and of failed rows of outputs."""
COMMANDS = ["status", "list", "errors", "logs", "verify", "ui"]
LIMIT = 1.5
"""The limit of a command that reads an output, in seconds."""
MEMORY_LIMIT = 100.0
"""The limit of a command in MiB. Reading large outputs may take more."""


@dataclass(frozen=True)
class Case:
    """A command, and its limit in seconds on the reference machine."""

    name: str
    arguments: tuple[str | Path, ...]
    limit: float

    memory: float = math.inf
    """Its limit in MiB."""

    def usage(self) -> tuple[float, float]:
        """Return the median CPU time and peak memory of the command. The first run is not counted:
        it compiles modules."""
        _, *others = (self._usage_once() for _ in range(1 + ROUNDS))
        seconds, memory = zip(*others, strict=True)
        return statistics.median(seconds), statistics.median(memory)

    def _usage_once(self) -> tuple[float, float]:
        command = [sys.executable, USAGE, PROGRAM, *self.arguments]
        done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120)
        seconds, memory = map(float, done.stdout.split())
        return seconds, memory


def job_file(directory: Path, number: int) -> Path:
    """Write a job with a model, a function and a filter, and return its file."""
    steps = [model_step(), python_step(), {"name": "long", "filter": f"len(text) > {number}"}]
    file = directory / f"job-{number}.yaml"
    file.write_text(yaml.safe_dump(document(f"job-{number}", steps=steps)))
    return file


def refuse(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Raise an error for each batch with a row that is to fail."""
    if batch["bad"].any():
        raise ValueError(f"cannot compute row {batch['id'][0]}")
    return batch


def output_of(directory: Path, files: int, failed: int) -> Path:
    """Write an output with a log from files with a good row and failed rows, and return it."""
    location = directory / f"{files}-{failed}"
    (location / "in").mkdir(parents=True)
    for file in range(files):
        numbers = range(file, failed, files)
        rows = [{"id": -1, "bad": False}, *({"id": number, "bad": True} for number in numbers)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (location / "in" / f"{file:04}.jsonl").write_text(text)
    job = document(
        "bench",
        read={"format": "json", "paths": [str(location / "in")]},
        steps=[{"name": "refuse", "python": {"callable": "command_line:refuse"}}],
        write={"format": "parquet", "path": str(location / "out")},
        errors={"maxRows": failed + 1, "values": True},
    )
    assert run_without_ray(job, rows_per_task=4 * FILES).counts == Counts(
        read=files + failed, written=files, failed=failed
    )
    logs = location / "out" / "_batchinference" / "logs"
    logs.mkdir()
    (logs / "2026-01-01T000000Z-pass-1.log").write_text("bench: running\n")
    return location / "out"


def cases_of_output(directory: Path, files: int, failed: int) -> list[Case]:
    output = output_of(directory, files, failed)
    name = f"{files} files, {failed} failed"
    limits = {"verify": 2.0} if files > 1 else {}  # it reads each file again
    return [
        Case(
            f"{command}, {name}",
            (command, output),
            limits.get(command, LIMIT),
            math.inf if files > 1 or failed else MEMORY_LIMIT,
        )
        for command in COMMANDS
    ]


def cases(directory: Path) -> list[Case]:
    files = [job_file(directory, number) for number in range(FILES)]
    return [
        Case("--help", ("--help",), 0.15),
        Case(f"validate, {FILES} files", ("validate", "--fields-only", *files), 2),
        *(case for given in OUTPUTS for case in cases_of_output(directory, *given)),
    ]


def measure(case: Case, factor: float) -> bool:
    """Print the line of a command in the table, and return whether it is within its limit."""
    (seconds, memory), limit = case.usage(), case.limit * factor
    within = seconds <= limit and memory <= case.memory
    used = f"{seconds:8.3f}{limit:8.3f}{memory:8.0f}{case.memory:8.0f}"
    print(f"{case.name:36}{used}  {'ok' if within else 'OVER'}", flush=True)
    return within


def main() -> None:
    factor = machine_factor(measured_cpu_seconds())
    print(f"factor of this machine: {factor:.2f}; seconds of CPU time and MiB of memory")
    print(f"{f'MEDIANS OF {ROUNDS} RUNS':36}{'CPU':>8}{'LIMIT':>8}{'MEMORY':>8}{'LIMIT':>8}")
    with tempfile.TemporaryDirectory() as directory:
        within = [measure(case, factor) for case in cases(Path(directory))]
    if not all(within):
        raise SystemExit("over a limit")


if __name__ == "__main__":
    exit_on_signals()
    main()
