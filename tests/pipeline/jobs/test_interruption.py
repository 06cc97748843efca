"""SIGINT and SIGTERM end a job at once. Committed rows are kept, and no process remains."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchinference.spec.report import REPORT_FILE, JobState, Report
from plugins.messages import Messages
from support.jobs.command import wait_until
from support.jobs.gated import HOLD, TEXTS, GatedCommand, gated_command
from support.jobs.on_ray import data_files, run_job
from support.outputs.rows import rows_of


@pytest.fixture
def command(tmp_path: Path, own_code: Path) -> Iterator[GatedCommand]:
    with gated_command(tmp_path, own_code) as command:
        yield command


def test_sigterm_ends_a_running_job(command: GatedCommand, ray: None, tmp_path: Path) -> None:
    wait_until(lambda: command.committed() >= len(TEXTS), "rows to be committed")
    command.process.send_signal(signal.SIGTERM)  # as Kubernetes does
    stderr = command.process.stderr
    assert stderr is not None
    while "held: stopping" not in stderr.readline():
        assert command.process.poll() is None
    command.process.send_signal(signal.SIGTERM)  # ends without waiting for the blocked row
    printed = command.end()

    assert command.process.returncode == 130
    assert "Interrupted: stopped by SIGTERM" in printed
    assert "Traceback" not in printed

    report = Report.parse((tmp_path / REPORT_FILE).read_bytes())
    assert (report.state, report.reason) == (JobState.FAILED, "Interrupted")
    assert report.message == "stopped by SIGTERM"
    assert report.counts is not None
    assert report.counts.read == len(TEXTS)
    in_output = (command.output / "_batchinference" / "report.json").read_bytes()
    assert Report.parse(in_output) == report

    assert not (command.output / "_SUCCESS").exists()
    assert sorted(row["text"] for row in rows_of(command.output)) == sorted(TEXTS)
    wait_until(lambda: not command.command.processes(), "the job's processes to end")

    command.gate.open()
    files = set(data_files(command.output))
    run = run_job(command.job)
    assert (run.report.state, run.report.pass_number) == (JobState.SUCCEEDED, 2)
    assert run.counts == (40, 40, 0, 0)
    assert files < set(data_files(command.output)), "committed rows are not done again"
    assert sorted(row["text"] for row in rows_of(command.output)) == sorted([*TEXTS, HOLD])


@pytest.mark.long("remote")
def test_sigint_while_ray_starts_leaves_no_rows(command: GatedCommand, messages: Messages) -> None:
    assert command.process.stderr is not None
    messages.check([command.process.stderr.readline() for _ in range(2)])
    os.killpg(command.process.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
    printed = command.end()
    assert command.process.returncode == 130
    assert "stopped by SIGINT" in printed
    assert "Traceback" not in printed
    assert data_files(command.output) == []
    wait_until(lambda: not command.command.processes(), "the job's processes to end")
