"""Files are added to the input of a finished job: `write.mode: append` reads only the new files."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.on_ray import Run, job_document, run_in_process, write_lines
from support.outputs.rows import rows_of


def night(directory: Path, name: str = "nightly", **write: str) -> Document:
    write = {"format": "parquet", "mode": "append", **write}
    return job_document(name, directory / "in", directory / "out", write=write)


def add(directory: Path, *names: str) -> None:
    write_lines(directory / "in", {f"{name}.txt": [f"{name} 1", f"{name} 2"] for name in names})


def texts(directory: Path) -> list[str]:
    return sorted(row["text"] for row in rows_of(directory / "out"))


def lines(*names: str) -> list[str]:
    return sorted(f"{name} {number}" for name in names for number in (1, 2))


def rows_read(run: Run) -> int:
    assert run.report.state == JobState.SUCCEEDED, run.report.message
    return run.counts[0]


@pytest.mark.parametrize("first", ["error", "append"])
def test_each_append_reads_new_files_only(tmp_path: Path, first: str) -> None:
    add(tmp_path, "b", "d")
    assert rows_read(run_in_process(night(tmp_path, mode=first))) == 4
    for new in (["a", "c"], ["e"]):
        add(tmp_path, *new)
        for name in "abcde":  # files that were read are not opened again
            known = tmp_path / "in" / f"{name}.txt"
            if known.exists() and name not in new:
                known.chmod(0o000)
        assert rows_read(run_in_process(night(tmp_path, "another-name"))) == 2 * len(new)
    assert texts(tmp_path) == lines(*"abcde")


def test_changed_file_is_not_mixed_with_its_old_rows(tmp_path: Path) -> None:
    add(tmp_path, "a")
    run_in_process(night(tmp_path))
    (tmp_path / "in" / "a.txt").write_text("something else\n")
    add(tmp_path, "b")
    run = run_in_process(night(tmp_path))
    assert run.report.reason == "BadInput"
    assert "a.txt' has changed" in str(run.report.message)
    assert "write.mode to overwrite" in str(run.report.message)
    assert texts(tmp_path) == lines("a")
