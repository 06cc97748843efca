"""Ctrl-C and SIGTERM: the job ends at once and says so, what is written stays, nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.owner import owner_of
from batchinference.spec import parse
from batchinference.spec.report import REPORT_FILE, JobState, Report
from support.commands import Command, wait_until
from support.documents import Document
from support.job_runs import data_files, job_document, run_job, write_lines
from support.outputs import rows_of

TEXTS = [f"text {n}" for n in range(39)]
Stop = Callable[[subprocess.Popen[str]], None]


class Held:
    """A running job of which all rows but a few are written; those are held by a file."""

    def __init__(self, directory: Path, own_code: Path) -> None:
        self.directory = directory
        self.gate = directory / "gate"
        self.output = directory / "out"
        source = write_lines(directory / "in", {"a.txt": TEXTS[:13], "b.txt": TEXTS[13:]})
        write_lines(source, {"c.txt": ["hold"]})
        shutil.copy(own_code, directory / "own_code.py")
        step = {"callable": "own_code:wait_for", "callArgs": {"file": str(self.gate)}}
        steps = [{"name": "held", "python": step}]
        self.job: Document = job_document("held", source, self.output, steps=steps)
        (directory / "job.yaml").write_text(yaml.safe_dump(self.job))
        self.command = Command(["run", "job.yaml", "--report-directory", "."], directory)
        self.process = self.command.start()

    def committed(self) -> int:
        layout = Layout.of(parse(self.job).spec)
        owner = owner_of(layout)
        return Attempt(layout, owner).counts().read if owner is not None else 0

    def end(self) -> str:
        """Wait for the end. What was printed comes back."""
        _, err = self.process.communicate(timeout=60)
        return err

    def report(self) -> Report:
        return Report.parse((self.directory / REPORT_FILE).read_bytes())


@pytest.fixture
def held(tmp_path: Path, own_code: Path) -> Iterator[Held]:
    held = Held(tmp_path, own_code)
    yield held
    held.gate.touch()
    if held.process.poll() is None:
        held.process.kill()
        held.process.wait()


def signal_program(process: subprocess.Popen[str]) -> None:
    """As Kubernetes does it."""
    process.send_signal(signal.SIGTERM)


def press_ctrl_c(process: subprocess.Popen[str]) -> None:
    """A terminal's Ctrl-C reaches the program's whole process group."""
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.parametrize(
    ("stop", "name"), [(signal_program, "SIGTERM"), (press_ctrl_c, "SIGINT")], ids=["TERM", "INT"]
)
def test_a_running_job_that_is_stopped(held: Held, ray: None, stop: Stop, name: str) -> None:
    wait_until(lambda: held.committed() >= 39, "rows to be written")
    stop(held.process)
    printed = held.end()

    assert held.process.returncode == 130
    assert f"Interrupted: stopped by {name}" in printed
    assert "Traceback" not in printed

    report = held.report()
    assert (report.state, report.reason) == (JobState.FAILED, "Interrupted")
    assert report.message == f"stopped by {name}"
    assert report.counts is not None
    assert report.counts.read == 39
    beside = (held.output / "_batchinference" / "report.json").read_bytes()
    assert Report.parse(beside) == report

    # what is written stays valid, and is no complete output
    assert not (held.output / "_SUCCESS").exists()
    assert sorted(row["text"] for row in rows_of(held.output)) == sorted(TEXTS)
    wait_until(lambda: not held.command.processes(), "the job's processes to end")

    held.gate.touch()
    files = set(data_files(held.output))
    run = run_job(held.job)
    assert (run.report.state, run.report.attempt) == (JobState.SUCCEEDED, 2)
    assert run.counts == (40, 40, 0, 0)
    assert files < set(data_files(held.output)), "what was written is not done again"
    assert sorted(row["text"] for row in rows_of(held.output)) == sorted([*TEXTS, "hold"])


@pytest.mark.parametrize("stop", [signal_program, press_ctrl_c], ids=["TERM", "INT"])
def test_a_job_that_is_stopped_while_ray_starts_touches_nothing(held: Held, stop: Stop) -> None:
    assert held.process.stderr is not None
    assert held.process.stderr.readline() == "held: starting Ray on this machine\n"
    stop(held.process)
    printed = held.end()
    assert held.process.returncode == 130
    assert "stopped by SIG" in printed
    assert "Traceback" not in printed
    assert not held.output.exists()
    wait_until(lambda: not held.command.processes(), "the job's processes to end")
