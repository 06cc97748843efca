"""Input files change, or are deleted, after their rows were written: `read.onChange: recompute` and
`read.onDelete: removeRows` replace these rows, and the output has exactly the rows of the current
files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from batchinference.pipeline.input.scan import FileRows
from batchinference.spec.report import JobState, Report
from support.documents.minimal import Document
from support.jobs.on_ray import job_document
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import rows_of
from support.outputs.verify_command import verified

STEPS = [
    {"name": "few", "filter": "text != 'skip'"},
    {"name": "words", "chunk": {"text": "text", "into": "word", "maxWords": 1}},
]
"""A line becomes a row per word; lines `skip` are filtered."""
EITHER = {"onChange": "recompute", "onDelete": "removeRows"}


def nightly(directory: Path, read: Document | None = None, **spec: object) -> Document:
    """Return the job of every night, which replaces the rows of changed and deleted files."""
    write = {"format": "parquet", "mode": "append", **spec.pop("write", {})}  # type: ignore[dict-item]
    read = {**EITHER, **(read or {})}
    source, output = directory / "in", directory / "out"
    return job_document("nightly", source, output, read=read, write=write, **spec)


def put(directory: Path, **files: list[str]) -> None:
    """Write files with these lines. A file that exists gets another time, as on a real disk."""
    (directory / "in").mkdir(exist_ok=True)
    for name, lines in files.items():
        path = directory / "in" / f"{name}.txt"
        before = path.stat().st_mtime_ns if path.exists() else 0
        path.write_text("".join(f"{line}\n" for line in lines))
        if before:
            os.utime(path, ns=(before + 10**9, before + 10**9))


def night(job: Document) -> Report:
    report = run_without_ray(job)
    assert report.state == JobState.SUCCEEDED, report.message
    return report


def texts(directory: Path, column: str = "text") -> list[str]:
    """Return the rows of an output that `verify` has proven."""
    assert verified(directory / "out").found == {}
    return sorted(row[column] for row in rows_of(directory / "out"))


@pytest.fixture
def read_files() -> Iterator[list[str]]:
    """Return a list that gets the names of the files whose rows are read."""
    names: list[str] = []
    original = FileRows.read

    def read(self, files, *arguments):  # type: ignore[no-untyped-def]
        names.extend(Path(file.path).name for file in files)
        return original(self, files, *arguments)

    with patch.object(FileRows, "read", read):
        yield names


@pytest.mark.parametrize("lines", [["b 1", "b 3"], ["b 3"], ["b 1", "b 2", "b 3"], []],
                         ids=["changed", "shrunk", "grown", "emptied"])  # fmt: skip
@pytest.mark.parametrize("mode", ["error", "append"])
def test_rows_of_a_changed_file_are_replaced(tmp_path: Path, lines: list[str], mode: str) -> None:
    put(tmp_path, a=["a 1"], b=["b 1", "b 2"], c=["c 1"])
    night(nightly(tmp_path, write={"mode": mode}))
    put(tmp_path, b=lines)
    night(nightly(tmp_path))
    assert texts(tmp_path) == sorted(["a 1", *lines, "c 1"])


def test_new_changed_and_deleted_files_of_several_nights_at_once(tmp_path: Path) -> None:
    put(tmp_path, a=["a 1"], b=["b 1"])
    night(nightly(tmp_path))
    put(tmp_path, c=["c 1"], d=["d 1"])
    night(nightly(tmp_path))
    put(tmp_path, b=["b 2", "b 3"], d=["d 2"], e=["e 1"])
    (tmp_path / "in" / "c.txt").unlink()
    report = night(nightly(tmp_path))
    assert texts(tmp_path) == ["a 1", "b 2", "b 3", "d 2", "e 1"]
    assert report.counts is not None
    assert report.counts.written == 5
