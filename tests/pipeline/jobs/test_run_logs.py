"""The log of a run: its content, its size and its location."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchinference.api import run_log
from batchinference.api.run_log import RunLog, log_directory, stored_logs
from batchinference.pipeline.execution.worker_output import WorkerOutput
from batchinference.spec import BatchInference, parse
from batchinference.spec.report import JobState, Report
from support.jobs.on_ray import job_document, write_lines
from support.jobs.without_ray import invoke_without_ray

SECRET = "AWS_SECRET_ACCESS_KEY=abcdefghijklmnopqrstuvwxyz0123456789ABCD"


def job_file(directory: Path, **spec: Any) -> str:
    """Write a job over one line of text, and return its file."""
    source = write_lines(directory / "in", {"a.txt": ["one"]})
    job = job_document("demo", source, directory / "out", **spec)
    (directory / "job.yaml").write_text(yaml.safe_dump(job))
    return str(directory / "job.yaml")


def print_to_file(directory: Path, code: str) -> None:
    """Run Python code that prints to the file `driver.log`, as the driver on a cluster does."""
    with (directory / "driver.log").open("w") as out:
        command = [sys.executable, "-c", code]
        subprocess.run(command, cwd=directory, stdout=out, check=True, timeout=120)


def test_output_of_workers_is_read_without_lines_of_ray(tmp_path: Path) -> None:
    out = tmp_path / "worker-ab12-01000000-77.out"
    output = WorkerOutput(str(tmp_path))
    assert output.new_lines() == []
    out.write_text(":job_id:01000000\n:task_name:read, up, write\nhello\nhalf a li")
    assert output.new_lines() == ["[worker 77] hello"]
    with out.open("a") as file:
        file.write(f"ne\n\x1b[31m{SECRET}\nLoading weights:  50%|####\n")
    half, secret = output.new_lines()
    assert half == "[worker 77] half a line"
    assert "abcdef" not in secret
    assert "\x1b" not in secret
    assert output.new_lines() == []


def test_crash_stack_contains_only_lines_of_user_code(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.touch()
    (tmp_path / "worker-ab12-01000000-77.err").write_text(
        "*** SIGSEGV received at time=1 ***\n"
        "Fatal Python error: Segmentation fault\n"
        f'  File "{own}", line 3 in crash\n'
        f'  File "{run_log.__file__}", line 9 in add\n'
        "Extension modules: numpy, pandas (total: 2)\n"
    )
    assert WorkerOutput(str(tmp_path)).new_lines() == [
        "[worker 77] Fatal Python error: Segmentation fault",
        f'[worker 77]   File "{own}", line 3 in crash',
    ]


def test_a_log_keeps_its_beginning_and_its_end() -> None:
    log = RunLog(max_beginning=100, max_end=100)
    for number in range(1000):
        log.add(f"line {number}")
    text = log.text()
    assert len(text) < 300
    assert "line 0\n" in text
    assert " lines ...\n" in text
    assert text.endswith("line 999\n")
    log = RunLog()
    log.add("x" * (run_log.MAX_LINE + 1))
    assert log.text().endswith("x...\n")


def test_logs_of_the_last_runs_are_stored_next_to_the_output(tmp_path: Path) -> None:
    file = job_file(tmp_path)
    invoke_without_ray("run", file)
    for number in range(run_log.KEPT_LOGS):
        name = f"2026-01-31T0000{number:02d}Z-pass-1.log"
        (tmp_path / "out/_batchinference/logs" / name).write_text("of an earlier run\n")
    done = invoke_without_ray("run", "--restart", file)
    idle = invoke_without_ray("run", file)
    assert ("was complete already" in idle.stderr, "log     " in idle.stderr) == (True, False)
    *earlier, log = stored_logs(log_directory(parse(yaml.safe_load(Path(file).read_text()))))
    assert len(earlier) == run_log.KEPT_LOGS - 1
    assert f"log     {log.uri}" in done.stderr
    text = log.read().decode()
    assert "demo: starting Ray on this machine" in text
    assert text.endswith("demo: succeeded\n")


def test_the_log_of_a_driver_is_the_file_that_it_prints_to(tmp_path: Path) -> None:
    """On a cluster, Ray redirects the driver to a file, and adds the output of workers to it. What
    the file had before is not of this run."""
    code = f"""
from batchinference.api.run_log import RunLog
print("of another program", flush=True)
log = RunLog()
print("of the driver")
print("(worker pid=7) {SECRET}", flush=True)
log.add_own_output()
open("log", "w").write(log.text())
"""
    print_to_file(tmp_path, code)
    first, second = (tmp_path / "log").read_text().splitlines()
    assert first == "of the driver"
    assert second.startswith("(worker pid=7) AWS_SECRET_ACCESS_KEY")
    assert "abcdef" not in second


def test_truncated_line_of_a_driver_is_omitted(tmp_path: Path) -> None:
    """Without the name before it, a secret would not be recognized."""
    code = f"""
from batchinference.api.run_log import RunLog
log = RunLog(max_end=40)
print("{SECRET}")
print("the end", flush=True)
log.add_own_output()
open("log", "w").write(log.text())
"""
    print_to_file(tmp_path, code)
    assert (tmp_path / "log").read_text() == "the end\n"


def test_unreadable_output_of_workers_does_not_fail_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: WorkerOutput) -> list[str]:
        raise FileNotFoundError("rotated")

    monkeypatch.setattr(WorkerOutput, "new_lines", read)
    assert invoke_without_ray("run", job_file(tmp_path)).exit_code == 0


def test_a_log_that_cannot_be_stored_does_not_fail_the_job(tmp_path: Path) -> None:
    file, logs = job_file(tmp_path), tmp_path / "out/_batchinference/logs"
    invoke_without_ray("run", file)
    shutil.rmtree(logs)
    logs.touch()
    done = invoke_without_ray("run", "--restart", file)
    assert (done.exit_code, "log     " in done.stderr) == (0, False)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def report(output: Path, **fields: Any) -> Report:
    given = {"name": "demo", "state": JobState.RUNNING, "output": str(output), "passNumber": 1}
    times = {"startedAt": "2026-01-31T00:00:00Z", "updatedAt": "2026-01-31T00:00:00Z"}
    return Report(**{**given, **times, "version": "1", "seconds": {"preparing": 1.0}, **fields})


def stored(job: BatchInference) -> dict[str, str]:
    """Return the stored logs by name."""
    return {
        log.uri.rpartition("/")[2]: log.read().decode() for log in stored_logs(log_directory(job))
    }


def test_last_lines_are_stored_at_most_once_a_minute_while_a_job_runs(tmp_path: Path) -> None:
    job, clock = parse(job_document("demo", tmp_path / "in", tmp_path / "out")), Clock()
    log, now = RunLog(clock=clock), report(tmp_path / "out")
    result = {}
    for second in range(0, 140, 5):
        clock.seconds = float(second)
        log.add(f"second {second}")
        log.store_so_far(job, now, own_output=False)
        for text in stored(job).values():
            result.setdefault(text, second)
    assert list(result.values()) == [10, 70, 130]
    last = stored(job)["2026-01-31T000000Z-pass-1.log"].splitlines()
    assert "second 130" in last[-2]
    assert run_log.UNFINISHED in last[-1]
    log.store(job, now.model_copy(update={"state": JobState.SUCCEEDED}))
    assert stored(job) == {"2026-01-31T000000Z-pass-1.log": log.text()}


def test_copy_of_a_running_job_is_small_and_replaced_by_the_next_pass(tmp_path: Path) -> None:
    job, clock = parse(job_document("demo", tmp_path / "in", tmp_path / "out")), Clock()
    log = RunLog(max_copy=200, clock=clock)
    for number in range(100):
        log.add(f"line {number}")
    for number in (1, 2):
        clock.seconds += 60
        log.store_so_far(job, report(tmp_path / "out", passNumber=number), own_output=False)
    ((name, text),) = stored(job).items()
    assert name.endswith("-pass-2.log")
    assert len(text) < 300
    assert "line 99\n" in text
    assert text.startswith("20")  # a whole line, with its time


def test_run_that_has_not_begun_to_write_stores_no_copy(tmp_path: Path) -> None:
    job, clock = parse(job_document("demo", tmp_path / "in", tmp_path / "out")), Clock()
    log = RunLog(clock=clock)
    clock.seconds = 30
    log.store_so_far(job, report(tmp_path / "out", passNumber=None), own_output=False)
    assert stored(job) == {}
    log.store_so_far(job, report(tmp_path / "out"), own_output=False)
    assert len(stored(job)) == 1


def test_log_of_a_killed_driver_has_its_last_lines(tmp_path: Path) -> None:
    step = {"name": "last", "python": {"callable": "support.jobs.user_code:killed"}}
    job_file(tmp_path, steps=[step])
    code = """
from batchinference.api import run_log
from support.jobs.without_ray import invoke_without_ray
run_log.FIRST_COPY_SECONDS = 0
invoke_without_ray("run", "job.yaml")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False, timeout=120
    )
    assert done.returncode == -signal.SIGKILL
    shown = invoke_without_ray("logs", str(tmp_path / "out"))
    assert shown.exit_code == 0
    assert "demo: running\n" in shown.stdout
    assert run_log.UNFINISHED in shown.stdout.splitlines()[-1]


def test_copy_has_the_output_of_a_driver_on_a_cluster(tmp_path: Path) -> None:
    job = job_document("demo", tmp_path / "in", tmp_path / "out")
    now = report(tmp_path / "out").serialized()
    code = f"""
from batchinference.api.run_log import RunLog
from batchinference.spec import parse
from batchinference.spec.report import Report
seconds = iter([0, 60, 60])
log = RunLog(clock=lambda: next(seconds))
print("{SECRET}")
print("the last line", flush=True)
log.store_so_far(parse({job!r}), Report.parse({now!r}), own_output=True)
"""
    print_to_file(tmp_path, code)
    (text,) = stored(parse(job)).values()
    assert "the last line\n" in text
    assert "abcdef" not in text
