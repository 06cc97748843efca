"""Failed rows that cannot be retried separately: the job is refused and changes nothing."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
import yaml

from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import Document
from support.inputs.table_sources import database, lance_set, saved
from support.jobs.on_ray import errors_of, job_document, run_in_process
from support.jobs.user_code import step_until
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import rows_of
from support.outputs.verify_command import verified
from support.program import run_program

ROWS = [{"id": number, "text": "bad" * (number == 7)} for number in range(30)]


def job(directory: Path, format_: str) -> Document:
    """Return a job that reads a source of this format with one bad row."""
    match format_:
        case "sql":
            url = database(directory / "a.db", [{**row, "score": 0.5} for row in ROWS])
            source = {"url": url, "query": "SELECT * FROM texts"}
        case "huggingface":
            name = str(saved(directory / "set", ROWS))
            source = {"name": name, "options": {"split": "train"}}
        case _:
            source = {"path": str(lance_set(directory / "a.lance", ROWS))}
    given = job_document(
        "source", "unused", directory / "out", steps=[step_until(directory / "repaired")],
        write={"format": "parquet"}, errors={"maxRows": 1},
    )  # fmt: skip
    given["spec"]["read"] = {"format": format_, **source}
    return given


def everything(directory: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def retried(given: Document, directory: Path) -> Report:
    (directory / "repaired").touch()
    given["spec"]["errors"]["retryFailedRows"] = True
    return run_without_ray(given)


@pytest.mark.parametrize("format_", ["sql", "huggingface", "lance"])
def test_retry_of_an_unrepeatable_source_is_refused(tmp_path: Path, format_: str) -> None:
    given = job(tmp_path, format_)
    run = run_in_process(given)
    assert (run.report.state, run.counts) == (JobState.SUCCEEDED, (30, 29, 1, 0))
    assert sorted(row["id"] for row in rows_of(tmp_path / "out")) == [*range(7), *range(8, 30)]
    (error,) = errors_of(tmp_path / "out")
    assert (error["path"], error["row"]) == (f"{format_}:0", 7)
    if format_ == "lance":  # its versions can be distinguished
        lance.write_dataset(pa.Table.from_pylist(ROWS[:3]), tmp_path / "a.lance", mode="append")
    before = everything(tmp_path / "out")
    report = retried(given, tmp_path)
    assert (report.state, report.reason) == (JobState.FAILED, "BadInput")
    assert f"errors.retryFailedRows: read.format '{format_}' cannot" in str(report.message)
    assert "Remove errors.retryFailedRows" in str(report.message)
    assert everything(tmp_path / "out") == before


def test_retry_of_an_unchanged_source_is_allowed(tmp_path: Path) -> None:
    given = job(tmp_path, "lance")
    run_without_ray(given)
    report = retried(given, tmp_path)
    assert report.counts is not None
    assert (report.counts.written, report.counts.failed) == (30, 0), report.message
    assert verified(tmp_path / "out").counts == {}


def test_interrupted_retry_keeps_the_output(tmp_path: Path) -> None:
    """Whether or not the next run retries the failed rows."""
    given = job(tmp_path, "lance")
    run_without_ray(given)
    given["spec"]["errors"] = {"retryFailedRows": True}
    assert run_without_ray(given).state == JobState.FAILED, "no row may be bad now"
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    lance.write_dataset(pa.Table.from_pylist(ROWS[:3]), tmp_path / "a.lance", mode="append")
    before = everything(tmp_path / "out")
    for retry in (True, False):
        given["spec"]["errors"] = {"maxRows": 1, "retryFailedRows": retry}
        assert run_without_ray(given).reason == "BadInput"
        assert everything(tmp_path / "out") == before


def test_unfinished_output_of_an_unrepeatable_source_starts_over(tmp_path: Path) -> None:
    given = job(tmp_path, "sql")
    given["spec"]["errors"] = {"retryFailedRows": True}
    assert run_without_ray(given).state == JobState.FAILED
    given["spec"]["errors"] = {"retryFailedRows": True, "maxRows": 1}
    report = run_without_ray(given)
    assert (report.state, report.pass_number) == (JobState.SUCCEEDED, 2), report.message


def test_retry_command_refuses_tables(tmp_path: Path, messages: Messages) -> None:
    given = job(tmp_path, "sql")
    given["spec"]["write"]["format"] = "delta"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(given))
    done = run_program("run", str(tmp_path / "job.yaml"), "--retry-errors")
    assert done.exit_code == 2
    messages.check(done.stderr)
    run_without_ray(given)
    shown = run_program("errors", str(tmp_path / "out"))
    assert ("1 failed row" in shown.output, "--retry-errors" in shown.output) == (True, False)
