"""`batchinference run`: its exit codes, its output, and the files that it leaves.

One successful job runs as a process with its own Ray."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchinference.spec.report import REPORT_FILE, JobState, Report
from plugins.messages import Messages
from support.jobs.command import Command, wait_until
from support.jobs.on_ray import job_document, write_lines
from support.jobs.without_ray import invoke_without_ray
from support.outputs.rows import rows_of

SECRET = "the-secret-of-this-test-2718"
TEXTS = [f"text {n}" for n in range(45)]


def job_file(directory: Path, own_code: Path, **spec: Any) -> Path:
    """Write a job with relative paths, its input and its module. Return the file of the job."""
    write_lines(directory / "in", {"a.txt": TEXTS[:30], "b.txt": TEXTS[30:]})
    shutil.copy(own_code, directory / "own_code.py")
    file = directory / "job.yaml"
    file.write_text(yaml.safe_dump(job_document("demo", "in", "./out", **spec)))
    return file


def report_in(directory: Path) -> Report:
    return Report.parse((directory / REPORT_FILE).read_bytes())


def test_job_with_a_ray_of_its_own_succeeds(
    tmp_path: Path, own_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job succeeds although one of its processes dies, and leaves no process and no secret."""
    dies = {"callable": "own_code:die_once", "callArgs": {"file": str(tmp_path / "died")}}
    length = {"callable": "own_code:length"}
    steps = [{"name": "dies", "python": dies}, {"name": "own", "python": length}]
    job_file(tmp_path, own_code, steps=steps)
    arguments = ["run", "job.yaml", "--sample", "3", "--report-directory", "reports/here"]
    command = Command(arguments, tmp_path, {"SOME_SECRET": SECRET})
    done = command.run()
    assert (done.returncode, done.stdout) == (0, "")
    wait_until(lambda: not command.processes(), "the job's processes to end")

    assert sorted(row["text"] for row in rows_of(tmp_path / "out")) == sorted(TEXTS)
    assert (tmp_path / "out" / "_SUCCESS").exists()
    report = report_in(tmp_path / "reports" / "here")
    stored = (tmp_path / "out" / "_batchinference" / "report.json").read_bytes()
    assert (report.state, report.retries) == (JobState.SUCCEEDED, 1)
    assert report == Report.parse(stored)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in file.read_bytes() for file in files)
    check_printed(done.stderr, tmp_path)

    # the paths of a job from stdin are relative to the working directory
    monkeypatch.chdir(tmp_path)
    again = invoke_without_ray("run", "-", stdin=(tmp_path / "job.yaml").read_text())
    assert again.exit_code == 0
    assert "the output was complete already" in again.stderr

    for part in (tmp_path / "out").glob("part-*"):
        part.write_bytes(b"damaged\n")
    again = invoke_without_ray("run", "job.yaml", "--sample", "3")
    assert again.exit_code == 0
    assert "--sample: write.path: '/" in again.stderr
    assert report_in(tmp_path / "reports" / "here") == report


def check_printed(printed: str, directory: Path) -> None:
    """Check the states, the summary and the sample, and that nothing else is printed."""
    lines = printed.splitlines()
    states = [line for line in lines if line.startswith("demo: ")]
    assert states[:3] == [
        "demo: preparing",
        "demo: starting Ray on this machine",
        "demo: starting workers and models, 0 rows, 0 %",
    ]
    assert states[-1].startswith("demo: finalizing, 45 rows, 100 %")
    summary = dict(
        line.split(None, 1)
        for line in lines
        if line.split(None, 1)[:1] and line[0].islower() and ": " not in line
    )
    assert summary["job"].strip() == "demo"
    assert summary["result"].strip() == "succeeded"
    assert summary["rows"].strip() == "45 read, 45 written"
    assert summary["output"].strip() == str(directory / "out")
    page = directory / "out" / "_batchinference" / "report.html"
    assert summary["report"].strip() == str(page)
    assert page.is_file()
    for number in range(3):
        assert f"row {number}:\n  text: text " in printed
    assert (directory / "died").exists()  # Ray prints a long message about it
    for text in ("row 3:", SECRET, "Dataset", "worker.py", "A worker died"):
        assert text not in printed


def test_failed_job_ends_with_1_and_its_reason(
    tmp_path: Path, own_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [{"name": "own", "python": {"callable": "own_code:refuse_bad"}}]
    job_file(tmp_path, own_code, steps=steps, errors={"maxRows": 1})
    write_lines(tmp_path / "in", {"c.txt": ["bad one", "bad two"]})
    monkeypatch.chdir(tmp_path)
    done = invoke_without_ray("run", "job.yaml", "--sample", "3", "--report-directory", ".")
    assert done.exit_code == 1
    message = " ".join(done.stderr.split())
    assert "TooManyErrors: 2 rows failed, limit: errors.maxRows (1)" in message
    assert f"{tmp_path / 'out' / '_batchinference' / 'errors'}" in message
    assert "row 0:" not in done.stderr
    assert report_in(tmp_path).reason == "TooManyErrors"


@pytest.mark.long("remote")
def test_missing_cluster_ends_with_1_and_one_line(
    tmp_path: Path, own_code: Path, messages: Messages
) -> None:
    job_file(tmp_path, own_code)
    done = Command(["run", "job.yaml", "--address", "nowhere"], tmp_path).run()
    assert done.returncode == 1
    messages.check(done.stderr)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
