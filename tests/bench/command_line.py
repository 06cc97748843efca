"""Measures the CPU time of commands that start no Ray.

CPU time is measured for the process, in user and system mode. The limits are for the reference
machine: the CPU time of a fixed amount of work is measured first, and gives the factor of this
machine.
`make command-line` runs this.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml
from rounds import ROUNDS
from stop_signals import exit_on_signals

from landing.calibration import machine_factor, measured_cpu_seconds
from support.documents.minimal import document, model_step, python_step
from support.jobs.command import PROGRAM, cpu_seconds

FILES = 100


@dataclass(frozen=True)
class Case:
    """A command, and its limit in seconds on the reference machine."""

    name: str
    arguments: tuple[str | Path, ...]
    limit: float

    def seconds(self) -> float:
        """Return the median CPU time of the command. The first run is not counted: it compiles
        modules."""
        _, *others = (cpu_seconds(PROGRAM, *self.arguments) for _ in range(1 + ROUNDS))
        return statistics.median(others)


def job_file(directory: Path, number: int) -> Path:
    """Write a job with a model, a function and a filter, and return its file."""
    steps = [model_step(), python_step(), {"name": "long", "filter": f"len(text) > {number}"}]
    file = directory / f"job-{number}.yaml"
    file.write_text(yaml.safe_dump(document(f"job-{number}", steps=steps)))
    return file


def cases(directory: Path) -> list[Case]:
    files = [job_file(directory, number) for number in range(FILES)]
    return [
        Case("--help", ("--help",), 0.15),
        Case(f"validate, {FILES} files", ("validate", "--fields-only", *files), 2),
    ]


def measure(case: Case, factor: float) -> bool:
    """Print the line of a command in the table, and return whether it is within its limit."""
    seconds, limit = case.seconds(), case.limit * factor
    within = seconds <= limit
    print(f"{case.name:22}{seconds:8.3f}{limit:8.3f}  {'ok' if within else 'OVER'}", flush=True)
    return within


def main() -> None:
    factor = machine_factor(measured_cpu_seconds())
    print(f"factor of this machine: {factor:.2f}; seconds of CPU time, medians of {ROUNDS} runs\n")
    print(f"{'COMMAND':22}{'CPU':>8}{'LIMIT':>8}")
    with tempfile.TemporaryDirectory() as directory:
        within = [measure(case, factor) for case in cases(Path(directory))]
    if not all(within):
        raise SystemExit("over a limit")


if __name__ == "__main__":
    exit_on_signals()
    main()
