"""The display of a running job, on a terminal and in a log."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from rich.console import Console

from batchinference.api.display import Display, short
from batchinference.spec import parse
from batchinference.spec.progress import STARTING, Counts, Progress
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import document
from support.documents.yaml_files import read_yaml

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


def summary(one: Report, files: Sequence[tuple[str, str]] = (), width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    Display(console).summarize(one, files=files)
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


def test_log_has_a_line_without_a_break_for_each_ten_percent() -> None:
    lines = log(*(running(rows) for rows in range(0, 1001, 7)), width=20)
    assert [line.split(", ")[2] for line in lines] == [
        "0 %", "10 %", "20 %", "30 %", "40 %", "50 %", "60 %", "70 %", "80 %", "90 %",
    ]  # fmt: skip


LAST_ROW = Progress(rows=9, total=9, percent=100, rowsPerSecond=3.0, eta="0s")


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
        (report(JobState.FINALIZING, progress=LAST_ROW), "9 rows, 100 %, 3.0 rows/s"),
    ],
)
def test_log_line_shows_the_known_figures(one: Report, figures: str) -> None:
    assert log(one) == [f"mine: {one.activity}, {figures}"]


SUMMARIES = read_yaml(Path(__file__).with_name("summaries.yaml"))


@pytest.mark.parametrize("case", SUMMARIES)
def test_summary_of_a_job(case: str, messages: Messages) -> None:
    ended = {**json.loads(report().serialized()), **SUMMARIES[case]}
    lines = summary(Report.model_validate_json(json.dumps(ended)), [("log", "out/1.log")])
    messages.check("\n".join(lines))


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
    with patch.dict(sys.modules, {"batchinference.pipeline.output.output_rows": preview}):
        Display(console).show_sample(parse(document("mine")), 1)
    assert printed(console).splitlines()[1] == f"  name{shown}: {shown}"


def test_summary_shows_messages_and_addresses_unchanged() -> None:
    message = "in [/tmp/x]: the columns are [image, text] :warning: " + "and more " * 30
    output = "s3://bucket/" + "deep/" * 30
    done = report(JobState.FAILED, message=message).model_copy(update={"output": output})
    lines = summary(done, width=40)
    assert (lines[2], lines[-1]) == ("        " + message, f"output  {output}")


def test_terminal_shows_a_progress_bar() -> None:
    text = on_terminal(running(0), running(500, rate=33.25, eta="15s", failed=2))
    assert "mine: running" not in text, "the lines of a log are not for terminals"
    frame = next(line for line in CONTROL.sub("", text).splitlines() if "500 of" in line)
    assert frame.startswith("running")
    assert "500 of 1,000 (50 %), 33.2 rows/s, ETA 15s, 2 failed" in frame
    assert "━" in frame
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
    """The reader of a preview looks for these values."""
    result = [
        {"index": n, "label": f"tabby cat {n}", "score": 0.98765432 / (n + 1)} for n in range(5)
    ]
    assert short(result[0]) == "{'index': 0, 'label': 'tabby cat 0', 'score': 0.9877}"
    assert short(result) == "[" + ", ".join(map(short, result)) + "]"
    assert short(result * 20).endswith(", ...] (100 values)")
    assert short({"a": 1e-9, "b": None, "c": [0.5] * 8}) == (
        "{'a': 1e-09, 'b': None, 'c': [0.5, 0.5, 0.5, 0.5, 0.5, ...] (8 values)}"
    )
    assert len(short({f"k{n}": "v" * 1000 for n in range(1000)})) <= 303
    assert short(["ab" * 50]) == f"['{'ab' * 29}a...]"
