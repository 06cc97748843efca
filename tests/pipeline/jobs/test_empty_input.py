"""An input without files, for jobs that run each night: it is an error unless the job allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchinference.spec.read import FILE_FORMATS
from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.on_ray import Run, job_document, run_in_process, write_lines
from support.outputs.builders import begin_job
from support.outputs.rows import rows_of
from support.outputs.verify_command import verified


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def night(source: Path, path: str = "", **spec: Any) -> Document:
    read = {"paths": [f"{source}/{path}"], "allowEmpty": True, **spec.pop("read", {})}
    write = {"mode": "append", **spec.pop("write", {})}
    return job_document("nightly", source, source.parent / "out", read=read, write=write, **spec)


def completed(document: Document) -> Run:
    """Run a job to its end, and verify its output."""
    run = run_in_process(document)
    assert run.report.state == JobState.SUCCEEDED, run.report.message
    assert verified(document["spec"]["write"]["path"]).result == "proven"
    return run


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_job_of_each_format_is_complete(source: Path, file_format: str) -> None:
    options = {"includePaths": True, "limit": 5, "shuffle": "files", "partitioning": "hive"}
    read = {"format": file_format, "options": options}
    run = completed(night(source, read=read, write={"format": "parquet", "mode": "error"}))
    assert run.counts == (0, 0, 0, 0)
    assert run.report.progress is not None
    assert (run.report.progress.total, run.report.progress.percent) == (0, 100)
    assert (source.parent / "out" / "_SUCCESS").exists()


@pytest.mark.parametrize("path", ["", "*.txt", "**", "sub"])
def test_directories_and_globs_may_be_empty(source: Path, path: str) -> None:
    (source / "sub").mkdir()
    write_lines(source, {"a.csv": ["x"]} if path != "**" else {})
    assert completed(night(source, path)).counts == (0, 0, 0, 0)


def test_steps_may_read_columns_of_an_empty_input(source: Path) -> None:
    steps = [{"name": "f", "filter": "a > 1"}, {"name": "b", "addColumns": {"b": "a + 1"}}]
    assert completed(night(source, read={"format": "csv"}, steps=steps)).counts == (0, 0, 0, 0)


def test_local_path_must_exist(source: Path) -> None:
    report = run_in_process(night(source, "none")).report
    assert report.reason == "BadInput"
    assert "ignoreMissingPaths" in str(report.message)
    options = {"options": {"ignoreMissingPaths": True}}
    assert completed(night(source, "none", read=options)).counts == (0, 0, 0, 0)


def test_files_that_come_later_are_appended(source: Path) -> None:
    assert completed(night(source)).counts[0] == 0
    assert "no new files" in str(completed(night(source)).report.message)
    write_lines(source, {"a.txt": ["one", "two"]})
    assert completed(night(source)).counts[0] == 2
    (source / "b.heic").touch()
    message = str(completed(night(source)).report.message)
    assert "1 file ignored: .heic 1" in message
    assert [row["text"] for row in rows_of(source.parent / "out")] == ["one", "two"]


def test_field_is_not_part_of_the_work(source: Path) -> None:
    write_lines(source, {"a.txt": ["one"]})
    completed(night(source, read={"allowEmpty": False}))
    write_lines(source, {"b.txt": ["two"]})
    assert completed(night(source)).counts[0] == 1
    assert len(rows_of(source.parent / "out")) == 2


def test_interrupted_job_is_completed(source: Path) -> None:
    document = night(source)
    assert begin_job(document).missing == {}
    prepared = begin_job(document)
    assert (prepared.job_pass.number, prepared.missing, prepared.input.size) == (2, {}, 0)
    write_lines(source, {"a.txt": ["one"]})
    assert completed(document).counts[0] == 0
    assert completed(document).counts[0] == 1
