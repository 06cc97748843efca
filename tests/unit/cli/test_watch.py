"""The progress that `watch` shows: a table on a terminal, and lines in a pipe."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from batchinference.api.jobs_on_cluster import Workers
from batchinference.api.observation import Observation
from batchinference.api.targets import Target
from batchinference.cli import watch
from batchinference.cli.printing import Format
from batchinference.cli.watch import line_of, watch_status
from batchinference.spec.progress import Counts, Progress

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WORKERS = (Workers("cpu", 1, 2), Workers("embed", 0, 1))
DAILY = ("job", "team/daily")
COUNTS = Counts(read=60, written=58, failed=2)
ENDED = Observation(DAILY, "Succeeded", Progress.of(60, 60), COUNTS, ended=True)
Watched = Callable[..., tuple[str, int]]


def running(**fields: Any) -> Observation:
    known = {"stage": "read, embed, write", "workers": WORKERS, "message": "it runs"}
    known["counts"] = Counts(read=30, written=28, failed=2)
    progress = Progress.of(30, 260, rate=2.5)
    return Observation(DAILY, "Running", progress, ended=False, **(known | fields))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Return a function that watches a job, and returns what is printed and the exit code."""

    def run(stdout: io.StringIO, *seen: Observation, form: Format = Format.TEXT) -> tuple[str, int]:
        progress = iter(seen)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(watch, "_observe", lambda target: next(progress))
        code = watch_status(Target("daily"), 1.0, sleep=lambda seconds: None, form=form)
        monkeypatch.undo()
        return stdout.getvalue(), code

    return run


def test_table_has_all_figures() -> None:
    facts = [("attempt", "2"), ("output", "./out")]
    assert running(facts=facts).lines == [
        ("job", "team/daily"),
        ("state", "Running"),
        ("", "it runs"),
        ("rows", "30 of 260 (11 %)"),
        ("failed rows", "2"),
        ("speed", "2.5 rows/s, ETA 1m32s"),
        ("stage", "read, embed, write"),
        ("workers", "cpu 1/2 ready, embed 0/1 ready"),
        *facts,
    ]


def test_table_leaves_out_what_is_unknown() -> None:
    unknown = Observation(DAILY, "Pending", Progress.of(0), None, ended=False)
    assert unknown.lines == [DAILY, ("state", "Pending"), ("rows", "0")]


def test_line_has_all_figures() -> None:
    assert line_of(running()) == (
        "Running, 30 rows, 11 %, 2.5 rows/s, ETA 1m32s, 2 failed, in read + embed + write, "
        "workers cpu 1/2 ready + embed 0/1 ready, it runs"
    )


def test_terminal_shows_a_table_that_is_replaced(watched: Watched) -> None:
    hostile = running(message="[red]bad\x1b[2J")
    printed, code = watched(Terminal(), running(), hostile, ENDED)
    assert code == 0
    assert "\x1b[2J" not in printed
    assert "\x1b[1A" in printed  # the cursor moves up to replace the table
    text = CONTROL.sub("", printed)
    for shown in ("daily", "30 of 260 (11 %)", "cpu 1/2 ready", "failed rows", "[red]bad"):
        assert shown in text
    *_, last = text.split("Succeeded")
    assert "60 of 60 (100 %)" in last


def test_pipe_gets_a_line_for_each_change(watched: Watched) -> None:
    failed = Observation(DAILY, "Failed", Progress.of(30, 60), COUNTS, ended=True, failed=True)
    printed, code = watched(io.StringIO(), running(), running(), failed)
    assert code == 1
    assert [line.split(",")[0] for line in printed.splitlines()] == ["Running", "Failed"]


def test_json_has_a_line_for_each_change(watched: Watched) -> None:
    printed, code = watched(io.StringIO(), running(), running(), ENDED, form=Format.JSON)
    assert code == 0
    first, last = map(json.loads, printed.splitlines())
    assert (first["state"], first["rows"], first["percent"]) == ("Running", 30, 11)
    assert (first["rate"], first["remainingSeconds"]) == (2.5, 92)
    assert first["workers"][0] == {"group": "cpu", "ready": 1, "pods": 2}
    assert (last["ended"], last["failed"], last["remainingSeconds"]) == (True, False, None)


def test_quiet_watch_shows_only_the_end(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "is_quiet", lambda: True)
    printed, _ = watched(io.StringIO(), running(), ENDED)
    assert printed == "Succeeded, 60 rows, 100 %, 2 failed\n"
