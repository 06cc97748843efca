"""Rows that have failed stay where they are until somebody asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.spec.report import JobState
from support.documents import Document
from support.job_runs import Run, data_files, errors_of, job_document, run_job, write_lines
from support.outputs import rows_of

pytestmark = pytest.mark.usefixtures("ray")

LINES = {
    f"{name}.txt": [f"{name} {n}" + " bad" * (n % 10 == 3) for n in range(30)] for name in "ab"
}


@pytest.fixture
def document(tmp_path: Path) -> Document:
    """A job of which 6 of 60 rows fail until the file `mended` is there."""
    step = {"callable": "own_code:fails_until", "method": "map"}
    step["callArgs"] = {"file": str(tmp_path / "mended")}
    source = write_lines(tmp_path / "in", LINES)
    steps = [{"name": "own", "python": step}]
    errors = {"maxRows": 10}
    return job_document("bad", source, tmp_path / "out", steps=steps, errors=errors)


def again(document: Document) -> Run:
    document["spec"]["errors"]["retry"] = True
    return run_job(document)


def test_without_being_asked_for_they_are_not_tried_again(
    document: Document, tmp_path: Path
) -> None:
    assert run_job(document).counts == (60, 54, 6, 0)
    (tmp_path / "mended").touch()
    run = run_job(document)
    assert run.report.message == "the output was complete already"
    assert run.counts == (60, 54, 6, 0)


def test_they_alone_are_tried_again_and_leave_the_errors(
    document: Document, tmp_path: Path
) -> None:
    run_job(document)
    before = {file: file.stat().st_mtime_ns for file in data_files(tmp_path / "out")}
    (tmp_path / "mended").touch()
    run = again(document)
    assert (run.report.state, run.counts) == (JobState.SUCCEEDED, (60, 60, 0, 0))
    assert {file: file.stat().st_mtime_ns for file in before} == before
    texts = sorted(row["text"] for row in rows_of(tmp_path / "out"))
    assert texts == sorted(line for lines in LINES.values() for line in lines)
    assert errors_of(tmp_path / "out") == []
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_those_that_fail_again_are_there_once(document: Document, tmp_path: Path) -> None:
    run_job(document)
    run = again(document)
    assert (run.report.state, run.counts) == (JobState.SUCCEEDED, (60, 54, 6, 0))
    ids = [error["id"] for error in errors_of(tmp_path / "out")]
    assert len(ids) == len(set(ids)) == 6


def test_an_output_without_bad_rows_is_left_alone(document: Document, tmp_path: Path) -> None:
    (tmp_path / "mended").touch()
    run_job(document)
    assert again(document).report.message == "the output was complete already"


def test_those_of_a_file_that_was_added_are_tried_again_too(
    document: Document, tmp_path: Path
) -> None:
    run_job(document)
    write_lines(tmp_path / "in", {"c.txt": ["c 1 bad", "c 2"]})
    document["spec"]["write"]["mode"] = "append"
    assert run_job(document).counts == (2, 1, 1, 0)
    (tmp_path / "mended").touch()
    assert again(document).counts == (62, 62, 0, 0), "of all nights together"
    assert "there are no new files" in str(again(document).report.message)
    assert len(rows_of(tmp_path / "out")) == 62


def test_a_row_that_has_become_several_is_done_again_as_a_whole(
    document: Document, tmp_path: Path
) -> None:
    """One of its parts has failed, the others are in the output."""
    words = {"name": "words", "python": {"callable": "own_code:words", "method": "flatMap"}}
    cut = {"name": "cut", "repartition": {"rowsPerBlock": 7}}
    rename = {"name": "rename", "renameColumns": {"word": "text"}}
    document["spec"]["steps"] = [words, rename, cut, *document["spec"]["steps"]]
    assert run_job(document).counts == (60, 120, 6, 0)
    (tmp_path / "mended").touch()
    assert again(document).counts == (60, 126, 0, 0)
    texts = sorted(row["text"] for row in rows_of(tmp_path / "out"))
    assert texts == sorted(
        word for lines in LINES.values() for line in lines for word in line.split()
    )
