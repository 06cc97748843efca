"""Failed rows keep their error records until a user requests a retry."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.documents.minimal import Document
from support.jobs.on_ray import (
    Run,
    data_files,
    errors_of,
    job_document,
    run_in_process,
    write_lines,
)
from support.jobs.user_code import step_until
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("own_code")

LINES = {
    f"{name}.txt": [f"{name} {n}" + " bad" * (n % 10 == 3) for n in range(30)] for name in "ab"
}


@pytest.fixture
def document(tmp_path: Path) -> Document:
    """Return a job in which 6 of 60 rows fail until the file `repaired` exists."""
    source, steps = write_lines(tmp_path / "in", LINES), [step_until(tmp_path / "repaired")]
    return job_document("bad", source, tmp_path / "out", steps=steps, errors={"maxRows": 10})


def again(document: Document) -> Run:
    document["spec"]["errors"]["retryFailedRows"] = True
    return run_in_process(document)


def test_failed_rows_are_not_retried_by_default(
    document: Document, tmp_path: Path, messages: Messages
) -> None:
    assert run_in_process(document).counts == (60, 54, 6, 0)
    (tmp_path / "repaired").touch()
    run = run_in_process(document)
    messages.check(run.report.message)
    assert run.counts == (60, 54, 6, 0)


def test_retry_reads_failed_rows_only(document: Document, tmp_path: Path) -> None:
    run_in_process(document)
    before = {file: file.stat().st_mtime_ns for file in data_files(tmp_path / "out")}
    (tmp_path / "repaired").touch()
    run = again(document)
    assert (run.report.state, run.counts) == (JobState.SUCCEEDED, (60, 60, 0, 0))
    assert {file: file.stat().st_mtime_ns for file in before} == before
    texts = sorted(row["text"] for row in rows_of(tmp_path / "out"))
    assert texts == sorted(line for lines in LINES.values() for line in lines)
    assert errors_of(tmp_path / "out") == []
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_exploded_row_is_retried_as_a_whole(document: Document, tmp_path: Path) -> None:
    """One of its parts has failed. The other parts are in the output."""
    words = {"name": "words", "python": {"callable": "own_code:words", "method": "flatMap"}}
    cut = {"name": "cut", "python": {"callable": "own_code:Same"}, "replicas": {}, "batchSize": 7}
    rename = {"name": "rename", "renameColumns": {"word": "text"}}
    document["spec"]["steps"] = [words, rename, cut, *document["spec"]["steps"]]
    assert run_in_process(document).counts == (60, 120, 6, 0)
    (tmp_path / "repaired").touch()
    assert again(document).counts == (60, 126, 0, 0)
    texts = sorted(row["text"] for row in rows_of(tmp_path / "out"))
    assert texts == sorted(
        word for lines in LINES.values() for line in lines for word in line.split()
    )
