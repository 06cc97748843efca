"""Warnings of rows: counted once for each row that is in the output, whatever happens to tasks."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.api.output_status import stored_jobs
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.prepared_pass import PreparedPass
from batchinference.pipeline.output.tables.sql import SqlTable
from batchinference.spec.report import JobState, Report
from batchinference.spec.warnings import WarningCount, WarningName
from batchinference.spec.write import WriteSql
from support.documents.minimal import Document, document
from support.jobs.on_ray import errors_of, write_numbers
from support.jobs.without_ray import invoke_without_ray, run_task_again, run_without_ray
from support.outputs.rows import rows_of

INPUT = {"a.jsonl": [1, 12, 3], "b.jsonl": [20, 5], "c.jsonl": [10, -1, 11]}
"""The numbers of each file. Those above 9 are cut, with a warning; -1 fails."""
CUT = {"name": "cut", "python": {"callable": "support.jobs.warning_steps:cut"}}
POOL = {**CUT, "python": {"callable": "support.jobs.warning_steps:Cut"}, "replicas": {"max": 1}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_numbers(tmp_path / "in", INPUT)


def job(source: Path, *steps: dict[str, Any], **errors: Any) -> Document:
    return document(
        "warned",
        read={"format": "json", "paths": [str(source)]},
        steps=list(steps) or [CUT],
        write={"format": "json", "path": str(source.parent / "out")},
        errors={"maxRows": 5, **errors},
    )


def test_storage_error_while_a_job_runs_is_no_failure(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PreparedPass, "warnings", Mock(side_effect=OSError("busy")))
    published: list[Report] = []
    report = run_without_ray(job(source), published.append)
    assert quantities(report.warnings) == [("TextCut", "cut", 4, 17)]
    states = [each.state for each in published if each.counts is not None]
    assert JobState.RUNNING in states, "the progress is published nevertheless"


def quantities(warnings: list[WarningCount]) -> list[tuple[str, str | None, int, int | None]]:
    return [(each.name, each.step, each.count, each.amount) for each in warnings]


@pytest.mark.parametrize("step", [CUT, POOL])
def test_report_counts_rows_and_amounts_and_names_one_row(
    source: Path, step: dict[str, Any]
) -> None:
    report = run_without_ray(job(source, step))
    assert quantities(report.warnings) == [("TextCut", "cut", 4, 3 + 11 + 1 + 2)]
    assert report.warnings[0].example == f"row 1 of {source / 'a.jsonl'}"
    assert report.counts is not None
    assert (report.counts.written, report.counts.failed, report.counts.warned) == (7, 1, 4)


def test_runs_of_one_process_name_their_own_files(source: Path) -> None:
    """A notebook runs a job again after its files were replaced by others."""
    again, out = job(source), source.parent / "out"
    again["spec"]["write"]["format"] = "parquet"
    for name in ("b.jsonl", "c.jsonl"):
        for file in source.iterdir():
            file.unlink()
        write_numbers(source, {name: [12, -1], f"{name[0]}z.jsonl": [11]})
        report = run_without_ray(again)
        examples = [warning.example for warning in report.warnings]
        assert (report.message, examples) == (None, [f"row 0 of {source / name}"])
        assert [error["path"] for error in errors_of(out)] == [str(source / name)]
        shutil.rmtree(out)


def test_resumed_job_counts_each_warning_once(source: Path) -> None:
    first = run_without_ray(job(source, warnings=[{"name": "TextCut", "maxRows": 1}]))
    assert first.reason == "TooManyErrors"
    assert first.counts is not None
    assert first.counts.written > 0
    resumed = run_without_ray(job(source))
    assert quantities(resumed.warnings) == [("TextCut", "cut", 4, 17)]


def test_task_that_runs_again_adds_no_warning(source: Path) -> None:
    given = job(source)
    run_without_ray(given)
    for task in range(3):
        with suppress(JobFailure):
            run_task_again(given, task)
    (work,) = stored_jobs(str(source.parent / "out"))
    assert work.committed().counts.warned == 4


def test_warning_about_a_row_that_fails_later_is_not_counted(source: Path) -> None:
    later = {"name": "later", "python": {"callable": "support.jobs.warning_steps:fail_odd"}}
    report = run_without_ray(job(source, CUT, later, maxRows=8))
    # the rows with the numbers 12, 20, 10 and 11 have odd ids
    assert (report.warnings, report.counts and report.counts.warned) == ([], 0)


def test_chosen_warning_makes_its_rows_failed_rows(source: Path) -> None:
    report = run_without_ray(job(source, warnings=[{"name": "TextCut", "action": "fail"}]))
    assert report.counts is not None
    assert (report.counts.written, report.counts.failed, report.counts.warned) == (3, 5, 0)
    assert report.warnings == []
    assert sorted(row["n"] for row in rows_of(source.parent / "out")) == [1, 3, 5]


def test_commands_name_the_warnings(source: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps(job(source)))
    assert "TextCut" in invoke_without_ray("preview", str(tmp_path / "job.yaml")).stdout
    run_without_ray(job(source))
    status = invoke_without_ray("status", str(source.parent / "out"))
    assert "TextCut (cut) 4 rows" in status.stdout
    shown = invoke_without_ray("verify", str(source.parent / "out"))
    (result,) = [line for line in shown.stdout.splitlines() if line.startswith("result")]
    assert "proven" in result
    assert "TextCut" in result
    assert "4 rows" in result
    (work,) = json.loads(
        invoke_without_ray("verify", str(source.parent / "out"), "-o", "json").stdout
    )["jobs"]
    assert [(each["name"], each["count"]) for each in work["warnings"]] == [("TextCut", 4)]


def test_verify_adds_up_the_warnings_of_all_jobs(source: Path) -> None:
    (source / "notes.xyz").write_text("")
    given = job(source)
    given["spec"]["write"]["mode"] = "append"
    run_without_ray(given)
    (source / "d.jsonl").write_text(json.dumps({"id": 9, "n": 30}))
    run_without_ray(given)
    shown = invoke_without_ray("verify", str(source.parent / "out"))
    (overall,) = [line for line in shown.stdout.splitlines() if line.startswith("overall")]
    assert overall.endswith("FilesIgnored 1 file, TextCut (cut) 5 rows (38 tokens)")
    status = invoke_without_ray("status", str(source.parent / "out")).stdout
    assert status.count("TextCut") == status.count("\n\noutput ") + 1 == 2


def test_output_without_a_report_keeps_its_warnings(source: Path) -> None:
    (source / "notes.xyz").write_text("")
    before = run_without_ray(job(source)).warnings
    assert [each.name for each in before] == ["FilesIgnored", "TextCut"]
    state = source.parent / "out" / "_batchinference"
    (state / "report.json").unlink()
    assert run_without_ray(job(source)).warnings == before
    (state / "input.parquet").unlink()
    (after,) = run_without_ray(job(source)).warnings
    assert (after.name, after.count) == ("TextCut", 4)


def test_each_warning_says_what_happened_and_what_to_do() -> None:
    for name in WarningName:
        assert name.meaning
        assert name.fix
        assert not name.message.endswith(".")
        assert name.value.isidentifier()


NAN, INF = float("nan"), float("inf")
ROWS = pa.table(
    {
        "id": [0, 1, 2, 3, 4],
        "score": [0.5, NAN, None, INF, 1.5],
        "boxes": [[1.0, NAN], [2.0], None, [-INF, NAN], []],
        "meta": [{"x": 1.0}, {"x": NAN}, None, {"x": 2.0}, {"x": None}],
    }
)
OUTPUTS: list[tuple[dict[str, Any], int, int]] = [
    ({"format": "json"}, 3, 6),
    ({"format": "json", "columns": ["id", "score"]}, 2, 2),
    ({"format": "json", "columns": ["id"]}, 0, 0),
    ({"format": "json", "partitionBy": ["score"]}, 3, 4),
    ({"format": "csv"}, 3, 4),
    ({"format": "webdataset"}, 3, 6),
    ({"format": "sql", "table": "t"}, 3, 5),
    ({"format": "parquet"}, 0, 0),
]
"""Outputs, with the number of rows and of values that are written as null."""


def run(directory: Path, write: dict[str, Any], rows: pa.Table = ROWS, **errors: Any) -> Report:
    source = directory / "in.parquet"
    pq.write_table(rows, source)
    location = {"path": str(directory / "out")}
    if write["format"] == "sql":
        location["url"] = f"sqlite:///{directory / 'out.db'}"
    job = document(
        "nulled",
        read={"format": "parquet", "paths": [str(source)]},
        steps=[],
        write={**write, **location},
        errors=errors,
    )
    return run_without_ray(job)


@pytest.mark.parametrize(("write", "rows", "values"), OUTPUTS, ids=str)
def test_each_value_that_becomes_null_is_counted(
    tmp_path: Path, write: dict[str, Any], rows: int, values: int
) -> None:
    report = run(tmp_path, write)
    assert report.counts is not None
    assert (report.counts.written, report.counts.warned) == (5, rows)
    warned = [(each.name, each.step, each.count, each.amount) for each in report.warnings]
    assert warned == ([("WrittenAsNull", "write", rows, values)] if rows else [])


def test_tasks_need_no_connection_to_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the driver connects: the variable with the URL may be set for the driver only."""
    monkeypatch.delenv("DATABASE", raising=False)
    fields = {"format": "sql", "urlEnv": "DATABASE", "table": "t", "path": "out"}
    table = SqlTable(WriteSql.model_validate(fields))
    assert table.nulled_rows(ROWS) == {0: 1, 1: 1, 3: 2}
    monkeypatch.setenv("DATABASE", "nosuchdriver://host/db")
    assert table.nulled_rows(ROWS) == {0: 1, 1: 1, 3: 2}


def test_each_zero_that_loses_its_sign_is_counted(tmp_path: Path) -> None:
    """SQLite stores -0.0 in a column of floats as the integer 0."""
    url, write = f"sqlite:///{tmp_path / 'rows.db'}", {"format": "sql", "table": "t", "path": "out"}
    table = SqlTable(WriteSql.model_validate({**write, "url": url}))
    of_postgres = SqlTable(WriteSql.model_validate({**write, "url": "postgresql://host/db"}))
    zeros = [-0.0, 0.0, None, -1.0, NAN]
    halves = np.array([-0.0, -0.0, 0.0, 1.0, -1.0], np.float16)
    words = pa.array(zeros).dictionary_encode()
    rows = pa.table({"x": zeros, "half": halves, "word": words, "text": ["-0.0"] * 5})
    assert table.unsigned_zeros(rows) == {0: 3, 1: 1}
    assert of_postgres.unsigned_zeros(rows) == {}


@pytest.mark.parametrize("action", ["count", "fail"])
def test_such_zeros_are_reported_or_refused(tmp_path: Path, action: str) -> None:
    rows = pa.table({"id": [1, 2], "x": [-0.0, 0.0]})
    policy = [{"name": "ZeroSignLost", "action": action}]
    report = run(tmp_path, {"format": "sql", "table": "t"}, rows, maxRows=1, warnings=policy)
    assert report.counts is not None
    written = 2 if action == "count" else 1
    assert (report.counts.written, report.counts.failed) == (written, 2 - written)
    assert quantities(report.warnings) == [("ZeroSignLost", "write", 1, 1)] * (written - 1)


def test_job_may_refuse_rows_with_such_values(tmp_path: Path) -> None:
    policy = [{"name": "WrittenAsNull", "action": "fail"}]
    report = run(tmp_path, {"format": "json"}, maxRows=3, warnings=policy)
    assert report.counts is not None
    assert (report.counts.written, report.counts.failed) == (2, 3)
    assert report.warnings == []
