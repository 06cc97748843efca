"""The display of a running job, on a terminal and in a log."""

from __future__ import annotations

import io
import os
import re
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from rich.console import Console

from batchinference.api.display import Display, short
from batchinference.spec import parse
from batchinference.spec.progress import STARTING, Counts, Progress
from batchinference.spec.report import JobState, Report, RunCost, StepTimes
from plugins.messages import Messages
from support.documents.minimal import document

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


def running(
    rows: int,
    total: int | None = 1000,
    rate: float | None = None,
    eta: str | None = None,
    failed: int = 0,
) -> Report:
    """Return the report of a running job that has finished some rows."""
    percent = None if total is None else 100 * rows // total
    progress = Progress(rows=rows, total=total, percent=percent, rowsPerSecond=rate, eta=eta)
    counts = Counts(read=rows, written=rows - failed, failed=failed)
    return report(progress=progress, counts=counts)


def log(*reports: Report, width: int = 80) -> list[str]:
    """Return the lines that the display writes to a file or a pipe."""
    return output_of(Console(file=io.StringIO(), width=width), *reports).splitlines()


def on_terminal(*reports: Report) -> str:
    return output_of(
        Console(file=io.StringIO(), force_terminal=True, width=100, _environ={}), *reports
    )


def output_of(console: Console, *reports: Report) -> str:
    with Display(console) as display:
        for one in reports:
            display.show(one)
    return printed(console)


def summary(one: Report, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    Display(console).summarize(one)
    return printed(console).splitlines()


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_log_has_a_line_for_each_state_except_the_end() -> None:
    assert log(*map(report, JobState)) == ["mine: preparing", "mine: running", "mine: finalizing"]


def test_run_starts_until_its_first_row_is_finished() -> None:
    lines = log(running(0), running(0), running(10, rate=5.0))
    assert [line.partition(",")[0] for line in lines] == [f"mine: {STARTING}", "mine: running"]
    assert STARTING in on_terminal(running(0))


def test_log_has_a_line_for_each_ten_percent() -> None:
    lines = log(*(running(rows) for rows in range(0, 1001, 7)))
    assert [line.split(", ")[2] for line in lines] == [
        "0 %", "10 %", "20 %", "30 %", "40 %", "50 %", "60 %", "70 %", "80 %", "90 %",
    ]  # fmt: skip


def test_log_omits_unchanged_reports() -> None:
    assert len(log(*[running(120)] * 50)) == 1


def test_log_line_is_not_wrapped() -> None:
    assert len(log(running(120, rate=33.3), width=20)) == 1


@pytest.mark.parametrize(
    ("one", "figures"),
    [
        (running(120, rate=33.25), "120 rows, 12 %, 33.2 rows/s"),
        (running(0), "0 rows, 0 %"),
        (running(120, total=None, rate=2.0), "120 rows, 2.0 rows/s"),
        (
            running(120, rate=2.0, eta="7m20s", failed=3),
            "120 rows, 12 %, 2.0 rows/s, ETA 7m20s, 3 failed",
        ),
    ],
    ids=["speed", "no rate", "no total", "time left and failed rows"],
)
def test_log_line_shows_the_known_figures(one: Report, figures: str) -> None:
    assert log(one) == [f"mine: {one.activity}, {figures}"]


def test_summary_of_a_succeeded_job() -> None:
    done = report(
        JobState.SUCCEEDED,
        counts=Counts(read=1000, written=1000, failed=0, filtered=0),
        progress=Progress(rows=1000, total=1000, percent=100, rowsPerSecond=250.0),
        seconds={"preparing": 1.25, "running": 4.0},
        notes=["gate: mean(n) is 2 in 9 rows", "another note"],
    )
    assert summary(done) == [
        "job     mine",
        "result  succeeded",
        "rows    1000 read, 1000 written",
        "notes   gate: mean(n) is 2 in 9 rows",
        "        another note",
        "speed   250.0 rows/s",
        "time    preparing 1.2 s, running 4.0 s",
        "output  s3://out/result/",
    ]


def test_summary_shows_how_busy_the_replicas_of_a_pool_were(messages: Messages) -> None:
    step = StepTimes(rows=10, seconds=5, rowsPerSecond=2)
    pool = step.model_copy(update={"wait_seconds": 12.0, "blocked_seconds": 3.0})
    lines = summary(report(JobState.SUCCEEDED, steps={"read": step, "embed": pool}))
    (shown,) = [line for line in lines if "computed" in line]
    messages.check(shown.split("  ")[-1])


def test_summary_shows_the_tokens_of_each_step() -> None:
    embed = StepTimes(rows=10, seconds=5, rowsPerSecond=2, inputTokens=1500, cachedTokens=10)
    ask = StepTimes(rows=10, seconds=5, rowsPerSecond=2, inputTokens=7, outputTokens=8)
    lines = summary(report(JobState.SUCCEEDED, steps={"embed": embed, "ask": ask}))
    assert "by step  embed 1,500 input (10 cached) tokens; ask 7 input + 8 output tokens" in lines
    lines = summary(report(JobState.SUCCEEDED, steps={"embed": embed}))
    assert not any("by step" in line for line in lines), "they are those of the job"


@pytest.mark.parametrize(
    ("tokens", "cost", "shown"),
    [
        ({"inputTokens": 1500, "outputTokens": 20}, None, "1,500 input + 20 output tokens"),
        (
            {"inputTokens": 900_000, "cachedTokens": 100, "outputTokens": 100_000},
            RunCost(amount="2.5", before="0.5", currency="EUR"),
            "900,000 input (100 cached) + 100,000 output tokens, 3.00 EUR per million",
        ),
        ({}, RunCost(amount="2.5", before="0.5", currency="EUR"), None),
        ({"inputTokens": 1500, "outputTokens": 0}, None, "1,500 input tokens"),
    ],
    ids=["tokens", "with their price", "none", "embeddings"],
)
def test_summary_shows_tokens_and_their_price(
    tokens: dict[str, int], cost: RunCost | None, shown: str | None
) -> None:
    lines = summary(report(JobState.SUCCEEDED, counts=Counts(read=3, **tokens), cost=cost))
    assert [line[8:] for line in lines if line.startswith("tokens")] == ([shown] if shown else [])


def test_summary_shows_which_rows_were_not_computed(messages: Messages) -> None:
    step = StepTimes(rows=10, seconds=5, rowsPerSecond=2)
    steps = {
        "read": step,
        "embed": step.model_copy(update={"reused": 7}),
        "ask": step.model_copy(update={"cached": 3}),
    }
    lines = summary(report(JobState.SUCCEEDED, steps=steps))
    messages.check([line for line in lines if line.startswith("reused")])


def test_summary_counts_filtered_and_failed_rows() -> None:
    counts = Counts(read=10, written=5, failed=2, filtered=3)
    lines = summary(report(JobState.SUCCEEDED, counts=counts, errors="s3://out/errors/"))
    assert "rows    10 read, 5 written, 2 failed, 3 filtered out" in lines
    assert lines[-1] == "errors  s3://out/errors/"


def test_summary_of_a_failed_job_shows_its_reason() -> None:
    lines = summary(report(JobState.FAILED, reason="ModelLoad", message="there is no model"))
    assert lines[:3] == ["job     mine", "result  failed", "        ModelLoad: there is no model"]


def test_summary_of_a_job_that_was_stopped_before_its_first_row() -> None:
    stopped = report(JobState.FAILED, reason="Interrupted", message="stopped by SIGINT")
    assert summary(stopped)[1] == "result  interrupted"


@pytest.mark.parametrize("verbose", [False, True])
def test_terminal_shows_messages_of_ray_only_when_asked(
    verbose: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, _environ={})
    with Display(console, verbose=verbose) as display:
        print("(raylet) A worker died")
        print("a warning of Ray", file=sys.stderr)
        display.say("a note")
    out, err = capsys.readouterr()
    shown = printed(console)
    assert ("(raylet) A worker died" in shown, "a warning of Ray" in shown) == (verbose, verbose)
    assert ("(raylet) A worker died" in out, "a warning of Ray" in err) != (verbose, verbose)
    assert "a note" in shown


def test_summary_of_an_interrupted_job_says_how_to_resume(messages: Messages) -> None:
    stopped = report(
        JobState.FAILED,
        reason="Interrupted",
        message="stopped by SIGINT",
        progress=Progress(rows=113, total=600, percent=18, rowsPerSecond=9.5),
    )
    messages.check(summary(stopped)[1:4])


def test_summary_without_counts_has_no_figures() -> None:
    lines = summary(report(JobState.FAILED, message="first\nsecond"))
    assert [line.split()[0] for line in lines] == ["job", "result", "first", "second", "output"]
    assert lines[2:4] == ["        first", "        second"]


def test_summary_shows_a_message_unchanged() -> None:
    message = "in [/tmp/x]: the columns are [image, text] :warning: " + "and more " * 30
    lines = summary(report(JobState.FAILED, message=message), width=40)
    assert lines[2] == "        " + message


def test_control_characters_do_not_reach_the_terminal() -> None:
    bad = "\x1b]0;title\x07 \x1b[2J old\r new \u202egpj \x9b31m"
    shown = "]0;title [2J old new gpj 31m"
    failed = report(JobState.FAILED, message=bad).model_copy(update={"output": bad, "name": bad})
    text = "\n".join(summary(failed))
    assert text.count(shown) == 3
    assert CONTROL.search(text) is None
    assert short(bad) == shown
    assert short([bad, 0.5]) == f"[{shown!r}, 0.5]"
    console = Console(file=io.StringIO(), width=80)
    preview = SimpleNamespace(first_rows=lambda *_: [{f"name{bad}": bad}])
    # the module itself would import all libraries of the pipeline
    with patch.dict(sys.modules, {"batchinference.pipeline.output.contents": preview}):
        Display(console).show_sample(parse(document("mine")), 1)
    assert printed(console).splitlines()[1] == f"  name{shown}: {shown}"


def test_summary_shows_an_address_unchanged() -> None:
    output = "s3://bucket/" + "deep/" * 30
    done = report(JobState.SUCCEEDED).model_copy(update={"output": output})
    assert summary(done, width=40)[-1] == f"output  {output}"


def test_terminal_shows_a_progress_bar() -> None:
    text = on_terminal(running(0), running(500, rate=33.25))
    assert "mine: running" not in text, "the lines of a log are not for terminals"
    frame = next(line for line in CONTROL.sub("", text).splitlines() if "500 of" in line)
    assert frame.startswith("running")
    assert "500 of 1,000 (50 %), 33.2 rows/s" in frame
    assert "━" in frame


def test_terminal_shows_rows_without_a_total() -> None:
    assert "━ 7 0:00" in CONTROL.sub("", on_terminal(running(7, total=None)))


def test_terminal_progress_bar_is_erased_when_the_job_has_ended() -> None:
    text = on_terminal(running(500), report(JobState.SUCCEEDED))
    erased_line, visible_cursor = "\x1b[2K", "\x1b[?25h"
    assert text.rstrip().endswith(erased_line)
    assert visible_cursor in text


def test_display_survives_a_replaced_stderr(capfd: pytest.CaptureFixture[str]) -> None:
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


def test_nested_numbers_are_shown_by_their_shape() -> None:
    assert short([[[1, 2, 3]] * 4] * 5) == "5x4x3 values"
    assert short(np.zeros((221, 197, 3), np.uint8)) == "221x197x3 uint8"
    assert short([["a"], ["b"]]) == "[['a'], ['b']]"


def test_labels_and_scores_are_shown() -> None:
    """They are what the reader of a preview looks for."""
    found = [
        {"index": n, "label": f"tabby cat {n}", "score": 0.98765432 / (n + 1)} for n in range(5)
    ]
    assert short(found[0]) == "{'index': 0, 'label': 'tabby cat 0', 'score': 0.9877}"
    assert short(found) == "[" + ", ".join(map(short, found)) + "]"
    assert short(found * 20).endswith(", ...] (100 values)")
    assert short({"a": 1e-9, "b": None, "c": [0.5] * 8}) == (
        "{'a': 1e-09, 'b': None, 'c': [0.5, 0.5, 0.5, 0.5, 0.5, ...] (8 values)}"
    )
    assert len(short({f"k{n}": "v" * 1000 for n in range(1000)})) <= 303
    assert short(["ab" * 50]) == f"['{'ab' * 29}a...]"


def test_terminal_shows_the_time_left_and_the_failed_rows() -> None:
    text = on_terminal(running(500, rate=33.25, eta="15s", failed=2))
    frame = next(line for line in CONTROL.sub("", text).splitlines() if "500 of" in line)
    assert "33.2 rows/s, ETA 15s, 2 failed" in frame


def test_time_left_is_not_shown_after_the_last_row() -> None:
    progress = Progress(rows=9, total=9, percent=100, rowsPerSecond=3.0, eta="0s")
    assert log(report(JobState.FINALIZING, progress=progress)) == [
        "mine: finalizing, 9 rows, 100 %, 3.0 rows/s"
    ]


def test_summary_names_the_stored_files() -> None:
    console = Console(file=io.StringIO(), width=80)
    files = [("report", "out/report.html"), ("log", "out/1.log")]
    Display(console).summarize(report(JobState.SUCCEEDED), files=files)
    assert printed(console).splitlines()[-3:] == [
        "output  s3://out/result/",
        "report  out/report.html",
        "log     out/1.log",
    ]
