"""Outputs that several jobs write to, that a job leaves unchanged, or that it adds new files to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pytest

from batchinference.pipeline.commit.output_paths import Layout
from batchinference.spec import parse
from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.documents.minimal import Document
from support.jobs.on_ray import Run, data_files, job_document, run_in_process, write_lines
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("own_code")


def job(directory: Path, name: str, mode: str, **write: Any) -> Document:
    """Return a job that reads one line, which is the name of the job."""
    source = directory / "in" / name
    if not source.exists():
        write_lines(source, {"a.txt": [name]})
    write = {"format": "parquet", "mode": mode, **write}
    return job_document(name, source, directory / "out", write=write)


def texts(directory: Path) -> list[str]:
    return sorted(row["text"] for row in rows_of(directory / "out"))


def succeeded(run: Run) -> bool:
    return run.report.state is JobState.SUCCEEDED


def test_jobs_append_once_each(tmp_path: Path, messages: Messages) -> None:
    assert succeeded(run_in_process(job(tmp_path, "first", "error")))
    for name in ("second", "third", "second"):
        run = run_in_process(job(tmp_path, name, "append"))
        assert succeeded(run), run.report.message
    assert texts(tmp_path) == ["first", "second", "third"]
    messages.check(run.report.message)


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_the_report_has_the_bytes_of_the_output(tmp_path: Path, mode: str) -> None:
    for name in ("first", "second") if mode == "overwrite" else ("first",):
        report = run_in_process(job(tmp_path, name, mode)).report
    assert report.output_bytes == sum(file.stat().st_size for file in data_files(tmp_path / "out"))


def test_a_job_whose_rows_all_fail_says_so(tmp_path: Path) -> None:
    document = job(tmp_path, "first", "error")
    document["spec"] |= {
        "steps": [{"name": "f", "addColumns": {"n": "int(text)"}}],
        "errors": {"maxRows": 1},
    }
    report = run_in_process(document).report
    assert (report.state, report.message) == (
        JobState.SUCCEEDED,
        "no row was written: 1 row failed",
    )


def test_partitions_are_written_cleaned_and_replaced(tmp_path: Path) -> None:
    steps = [{"name": "kind", "python": {"callable": "own_code:length"}}]
    source = write_lines(tmp_path / "in", {"a.txt": ["a", "bb", "cc", "d"]})
    write = {"format": "parquet", "mode": "overwrite", "partitionBy": ["length"]}
    document = job_document("parts", source, tmp_path / "out", steps=steps, write=write)
    for _ in range(2):
        assert succeeded(run_in_process(document))
        read = pads.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
        pairs = sorted((row["text"], row["length"]) for row in read)
        assert pairs == [("a", 1), ("bb", 2), ("cc", 2), ("d", 1)]
    full = {"format": "parquet", "mode": "overwrite", "columns": ["text"]}
    flat = job_document("flat", source, tmp_path / "out", steps=steps, write=full)
    assert succeeded(run_in_process(flat))
    assert list((tmp_path / "out").rglob("length=*/*.parquet")) == []
    assert {tuple(row) for row in rows_of(tmp_path / "out")} == {("text",)}


@pytest.mark.parametrize(("begun", "mode"), [("error", "append"), ("append", "error")])
@pytest.mark.parametrize("complete", [True, False])
def test_work_continues_where_it_was_begun_in_another_mode(
    tmp_path: Path, begun: str, mode: str, complete: bool
) -> None:
    """Its rows would exist twice otherwise."""
    first = job(tmp_path, "first", begun)
    assert succeeded(run_in_process(first))
    layout = Layout.of(parse(first).spec)
    for of_the_end in () if complete else (layout.success, layout.final_snapshot):
        of_the_end.delete()
    run = run_in_process(job(tmp_path, "first", mode))
    assert succeeded(run), run.report.message
    assert texts(tmp_path) == ["first"]


def night(directory: Path, name: str = "nightly", **write: str) -> Document:
    write = {"format": "parquet", "mode": "append", **write}
    return job_document(name, directory / "in", directory / "out", write=write)


def add(directory: Path, *names: str) -> None:
    write_lines(directory / "in", {f"{name}.txt": [f"{name} 1", f"{name} 2"] for name in names})


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
