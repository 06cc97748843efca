"""Failed rows: written with their error up to a limit, beyond which the job fails."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference import credentials
from batchinference.pipeline import job as job_module
from batchinference.pipeline.errors import WorkerCrashed
from batchinference.pipeline.execution import crash_notes, segment
from batchinference.pipeline.execution.crash_isolation import CrashNote
from batchinference.pipeline.execution.stop_signals import run_monitored
from batchinference.pipeline.row_batch import pack_id
from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.on_ray import errors_of, job_document, run_in_process, run_job, write_lines
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("own_code")

GOOD = [f"good {n}" for n in range(57)]
TEXTS = [*GOOD[:20], "bad one", *GOOD[20:50], "bad two", *GOOD[50:], "bad three"]
"""Sixty rows. The step raises for three of them: rows 20, 51 and 59."""
REFUSE = {"name": "own", "python": {"callable": "own_code:refuse_bad"}}


def job(directory: Path, errors: dict[str, Any] | None, *steps: Document) -> Document:
    source = write_lines(directory / "in", {"a.txt": TEXTS})
    fields = {} if errors is None else {"errors": errors}
    return job_document("bad", source, directory / "out", steps=list(steps or [REFUSE]), **fields)


@pytest.mark.parametrize(
    "errors", [{"maxRows": 3}, {"maxPercent": 5.0}, {"maxRows": 3, "maxPercent": 5.0}], ids=str
)
def test_failed_rows_within_the_limit_are_written_as_errors(
    tmp_path: Path, errors: dict[str, Any]
) -> None:
    run = run_in_process(job(tmp_path, errors))
    assert (run.report.state, run.counts) == (JobState.SUCCEEDED, (60, 57, 3, 0))
    assert sorted(row["text"] for row in rows_of(tmp_path / "out")) == sorted(GOOD)
    assert run.report.errors == str(tmp_path / "out" / "_batchinference" / "errors")
    failed = sorted(errors_of(tmp_path / "out"), key=lambda error: error["row"])
    line = re.compile(r" \(own_code.py:\d+ in refuse_bad\)$")
    assert all(line.search(error["error"]) for error in failed)
    messages = [line.sub("", error["error"]) for error in failed]
    rows = [(error["id"], error["row"], error["step"]) for error in failed]
    assert [(*one, message) for one, message in zip(rows, messages, strict=True)] == [
        ("0:20", 20, "own", "ValueError: cannot do bad one"),
        ("0:51", 51, "own", "ValueError: cannot do bad two"),
        ("0:59", 59, "own", "ValueError: cannot do bad three"),
    ]
    assert {error["path"] for error in failed} == {str(tmp_path / "in" / "a.txt")}
    assert all("refuse_bad" in error["traceback"] for error in failed)


@pytest.mark.parametrize("values", [True, False])
def test_errors_are_written_to_their_path_with_values_of_rows(tmp_path: Path, values: bool) -> None:
    errors = {"maxRows": 3, "values": values, "path": str(tmp_path / "bad")}
    assert run_in_process(job(tmp_path, errors)).report.errors == str(tmp_path / "bad")
    bad = {json.dumps({"text": text}) for text in TEXTS if text not in GOOD}
    assert {error["values"] for error in rows_of(tmp_path / "bad")} == (bad if values else {None})
    assert errors_of(tmp_path / "out") == []


def test_values_of_secrets_are_masked_in_errors_of_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_values", set())
    monkeypatch.setenv("OWN_HEADER", "bad value of a header")
    lines = write_lines(tmp_path / "in", {"a.txt": ["bad value of a header", "bad luck"]})
    source = {"secretKeyRef": {"name": "headers", "key": "own"}}
    env = {"env": [{"name": "OWN_HEADER", "valueFrom": source}]}
    errors = {"maxRows": 2}
    run_in_process(
        job_document("bad", lines, tmp_path / "out", steps=[REFUSE], errors=errors, cluster=env)
    )
    failed = [json.dumps(error) for error in errors_of(tmp_path / "out")]
    assert len(failed) == 2
    assert "bad luck" in "".join(failed)
    assert "bad value" not in "".join(failed)


@pytest.mark.usefixtures("ray")
def test_job_with_too_many_failed_rows_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input is text, so its number of rows is only an estimate."""
    monkeypatch.setattr(job_module, "run_monitored", partial(run_monitored, poll_seconds=0.1))
    many = [f"good {n}" if n % 5 else f"bad {n}" for n in range(1200)]
    until = tmp_path / "until"
    kept = {"callable": "own_code:wait_for", "callArgs": {"file": str(until)}}
    source = write_lines(tmp_path / "in", {"a.txt": many, "b.txt": ["hold"], "c.txt": GOOD})
    steps = [{**REFUSE, "batchSize": 20}, {"name": "held", "python": kept}]
    errors = {"maxPercent": 5.0}
    run = run_job(job_document("bad", source, tmp_path / "out", steps=steps, errors=errors))
    until.touch()  # a task that is still running would take a CPU from other tests
    assert run.report.reason == "TooManyErrors"
    assert run.report.counts is not None
    assert run.report.counts.failed > 1
    assert run.report.counts.read < 1200 + 1 + len(GOOD)


def damaged_parquet(path: Path) -> None:
    """Write a file with a valid footer and a damaged page in its first row group."""
    table = pa.table({"text": [f"a line of text, number {n}" for n in range(1000)]})
    pq.write_table(table, path, compression="snappy", row_group_size=400)
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)


def test_only_rows_of_a_damaged_row_group_fail(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    pq.write_table(pa.table({"text": ["good"] * 3}), source / "a.parquet")
    damaged_parquet(source / "b.parquet")
    read = {"format": "parquet"}
    run = run_in_process(
        job_document("bad", source, tmp_path / "out", read=read, errors={"maxRows": 400})
    )
    assert run.counts == (1003, 603, 400, 0)
    failed = sorted(errors_of(tmp_path / "out"), key=lambda error: error["row"])
    assert [error["id"] for error in failed] == [f"1:{row}" for row in range(400)]
    assert {(error["path"], error["step"], error["traceback"]) for error in failed} == {
        (str(source / "b.parquet"), "read", "")
    }


def test_a_process_that_dies_is_reported_with_its_step_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise WorkerCrashed("a process died")

    note = CrashNote("own", ((pack_id(0, 2), pack_id(0, 5)),))
    monkeypatch.setattr(job_module, "deaths_of", lambda run: [(note,)])
    monkeypatch.setattr(job_module, "check_errors", die)
    run = run_in_process(job(tmp_path, {"maxRows": 3}))
    text = f"step 'own' on rows 2 to 4 of {tmp_path}/in/a.txt"
    assert run.report.reason == "WorkerCrashed"
    assert run.report.message == f"a process died. The process died in {text}"


def test_unreadable_or_unwritable_note_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head of Ray may have died, too."""

    def away(*_: Any) -> None:
        raise RuntimeError("the head does not answer")

    def die(*_: Any, **__: Any) -> None:
        raise WorkerCrashed("a process died")

    monkeypatch.setattr(segment, "replaces_dead_process", lambda: True)
    monkeypatch.setattr(crash_notes, "owner_of_this_process", lambda: "task")
    monkeypatch.setattr(crash_notes, "put_note", away)
    monkeypatch.setattr(crash_notes, "remove_note", away)
    monkeypatch.setattr(crash_notes, "lost_nodes", away)
    assert run_in_process(job(tmp_path, {"maxRows": 3})).report.state == JobState.SUCCEEDED
    monkeypatch.setattr(job_module, "check_errors", die)
    again = job(tmp_path, {"maxRows": 3})
    again["spec"] |= {"resume": False, "write": {**again["spec"]["write"], "mode": "overwrite"}}
    assert run_in_process(again).report.message == "a process died"
