"""Files whose unreadable part counted as one failed row, and that become readable later."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.inputs import formats as inputs
from support.jobs.on_ray import job_document
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import Row, rows_of
from support.outputs.verify_command import verified


def write_packed(directory: Path) -> list[Row]:
    """Write JSON lines to compressed files, and return the rows."""
    rows = inputs.write_json_lines(directory)
    for file in directory.iterdir():
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    return rows


FORMATS: dict[str, Callable[[Path], list[Row]]] = {
    "numpy": inputs.write_numpy,
    "parquet": inputs.write_parquet,
    "json": write_packed,
    "webdataset": inputs.write_webdataset,
    "video": inputs.write_video,
}


def exchange(file: Path, content: bytes) -> bytes:
    """Replace the content of a file but keep its modification time. Return the previous content."""
    before, time = file.read_bytes(), file.stat().st_mtime_ns
    file.write_bytes(content)
    os.utime(file, ns=(time, time))
    return before


def job(format_: str, directory: Path) -> Document:
    read = {"format": format_}
    if format_ == "json":
        read["options"] = {"fileExtensions": ["gz"]}
    errors = {"maxRows": 100}
    return job_document("files", directory / "in", directory / "out", read=read, errors=errors)


@pytest.mark.parametrize(("format_", "sound"), [*((name, 0.0) for name in FORMATS), ("json", 0.7)])
def test_retry_reads_all_rows_of_an_unreadable_file(
    tmp_path: Path, format_: str, sound: float
) -> None:
    """`sound` is the fraction of the file that the first run can read."""
    (tmp_path / "in").mkdir()
    rows = FORMATS[format_](tmp_path / "in")
    file = sorted((tmp_path / "in").iterdir())[-1]
    content = file.read_bytes()
    known = int(len(content) * sound)
    exchange(file, content[:known] + b"\xff" * (len(content) - known))
    given = job(format_, tmp_path)
    first = run_without_ray(given)
    assert first.counts is not None
    assert (first.state, first.counts.failed) == (JobState.SUCCEEDED, 1), first.message
    exchange(file, content)
    given["spec"]["errors"]["retryFailedRows"] = True
    again = run_without_ray(given)
    assert again.counts is not None
    assert (again.counts.written, again.counts.failed) == (len(rows), 0)
    assert len(rows_of(tmp_path / "out")) == len(rows)
    assert verified(tmp_path / "out").counts == {}
