"""What a person sees of a running job."""

from __future__ import annotations

import io
import os
import re
from typing import Any

import pytest
from rich.console import Console

from batchinference.cli.display import Display
from batchinference.spec.report import JobState, Report
from batchinference.spec.status import Counts, Progress

STAMP = "2026-01-02T03:04:05Z"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def report(state: JobState = JobState.RUNNING, **fields: Any) -> Report:
    return Report(
        name="mine",
        state=state,
        output="s3://out/result/",
        startedAt=STAMP,
        updatedAt=STAMP,
        version="0.0.0",
        **fields,
    )


def at(rows: int, total: int | None = 1000, rate: float | None = None) -> Report:
    """A running job that has finished so many rows."""
    percent = None if total is None else 100 * rows // total
    progress = Progress(rows=rows, total=total, percent=percent, rowsPerSecond=rate)
    return report(progress=progress)


def log(*reports: Report, width: int = 80) -> list[str]:
    """The lines that a file or a pipe gets."""
    console = Console(file=io.StringIO(), width=width)
    with Display(console) as display:
        for one in reports:
            display.show(one)
    return printed(console).splitlines()


def summary(one: Report, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    Display(console).summarize(one)
    return printed(console).splitlines()


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_log_gets_a_line_for_each_state() -> None:
    states = [JobState.PREPARING, JobState.RUNNING, JobState.FINALIZING]
    assert log(*(report(state) for state in states)) == [
        "mine: preparing",
        "mine: running",
        "mine: finalizing",
    ]


def test_a_log_gets_a_line_for_each_tenth_of_the_way() -> None:
    lines = log(*(at(rows) for rows in range(0, 1001, 7)))
    assert [line.split(", ")[2] for line in lines] == [
        "0 %", "10 %", "20 %", "30 %", "40 %", "50 %", "60 %", "70 %", "80 %", "90 %",
    ]  # fmt: skip


def test_unchanged_state_is_logged_once() -> None:
    assert len(log(*[at(120)] * 50)) == 1


def test_line_shows_progress_and_rate() -> None:
    assert log(at(120, rate=33.25)) == ["mine: running, 120 rows, 12 %, 33.2 rows/s"]


def test_line_omits_unknown_figures() -> None:
    assert log(at(0)) == ["mine: running, 0 rows, 0 %"]
    assert log(at(120, total=None, rate=2.0)) == ["mine: running, 120 rows, 2.0 rows/s"]


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_the_end_is_left_to_the_summary(state: JobState) -> None:
    assert log(report(state)) == []


def test_summary_of_a_succeeded_job() -> None:
    done = report(
        JobState.SUCCEEDED,
        counts=Counts(read=1000, written=1000, failed=0, skipped=0),
        progress=Progress(rows=1000, total=1000, percent=100, rowsPerSecond=250.0),
        seconds={"preparing": 1.25, "running": 4.0},
    )
    assert summary(done) == [
        "job     mine",
        "result  succeeded",
        "rows    1000 read, 1000 written",
        "speed   250.0 rows/s",
        "time    preparing 1.2 s, running 4.0 s",
        "output  s3://out/result/",
    ]


def test_summary_counts_skipped_and_failed_rows() -> None:
    counts = Counts(read=10, written=5, failed=2, skipped=3)
    lines = summary(report(JobState.SUCCEEDED, counts=counts, errors="s3://out/errors/"))
    assert "rows    10 read, 5 written, 2 failed, 3 filtered out" in lines
    assert lines[-1] == "errors  s3://out/errors/"


def test_summary_of_a_failed_job_has_its_reason() -> None:
    lines = summary(report(JobState.FAILED, reason="ModelLoad", message="there is no model"))
    assert lines[:3] == ["job     mine", "result  failed", "        ModelLoad: there is no model"]


def test_the_summary_of_a_job_that_failed_at_once_has_no_numbers() -> None:
    lines = summary(report(JobState.FAILED, message="no"))
    assert [line.split()[0] for line in lines] == ["job", "result", "no", "output"]


def test_a_message_of_several_lines_stays_in_its_column() -> None:
    lines = summary(report(JobState.FAILED, message="first\nsecond"))
    assert lines[2:4] == ["        first", "        second"]


def test_message_is_shown_unchanged() -> None:
    message = "in [/tmp/x]: the columns are [image, text] :warning: " + "and more " * 30
    lines = summary(report(JobState.FAILED, message=message), width=40)
    assert lines[2] == "        " + message


def test_addresses_are_never_cut() -> None:
    output = "s3://bucket/" + "deep/" * 30
    done = report(JobState.SUCCEEDED).model_copy(update={"output": output})
    assert summary(done, width=40)[-1] == f"output  {output}"


def test_a_line_of_a_log_is_never_wrapped() -> None:
    assert len(log(at(120, rate=33.3), width=20)) == 1


def on_terminal(*reports: Report) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, _environ={})
    with Display(console) as display:
        for one in reports:
            display.show(one)
    return printed(console)


def test_a_terminal_gets_a_bar() -> None:
    shown = CONTROL.sub("", on_terminal(at(0), at(500, rate=33.25)))
    frame = next(line for line in shown.splitlines() if "500/1000" in line)
    assert frame.startswith("running")
    assert "50%" in frame
    assert "33.2 rows/s" in frame
    assert "━" in frame


def test_bar_without_total_shows_rows_only() -> None:
    shown = CONTROL.sub("", on_terminal(at(7, total=None)))
    assert "7/?" in shown


def test_the_bar_goes_when_the_job_has_ended() -> None:
    shown = on_terminal(at(500), report(JobState.SUCCEEDED))
    erased_line = "\x1b[2K"
    assert shown.rstrip().endswith(erased_line)
    assert "\x1b[?25h" in shown  # the cursor is back


def test_a_terminal_gets_no_lines() -> None:
    assert "mine: running" not in on_terminal(at(0), at(500))


def test_display_survives_a_replaced_stderr(
    capfd: pytest.CaptureFixture[str],
) -> None:
    display = Display()
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        display.say("still here")
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    assert capfd.readouterr().err == "still here\n"
