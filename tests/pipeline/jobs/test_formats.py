"""Every format of input files, with Parquet or JSON output.

The output holds the rows that plain Python reads from the input. Five formats run on Ray as well.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from batchinference.spec.report import Report
from support.documents.minimal import Document
from support.inputs.formats import CASES
from support.jobs.on_ray import job_document, run_job, without_order
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import Row, rows_of

ON_RAY = [
    ("json lines", "json"),
    ("csv", "json"),
    ("images", "parquet"),
    ("webdataset", "parquet"),
    ("manifest", "parquet"),
]


def in_json(row: Row) -> Row:
    """Return a row in a form that JSON supports."""
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in row.items()
    }


def copy_job(directory: Path, name: str, output: str) -> tuple[Document, list[Row]]:
    """Return a job that copies its input, and the rows that it should write."""
    source, case = directory / "in", CASES[name]
    source.mkdir()
    expected = case.write(source)
    job = job_document(
        "copy",
        source,
        directory / "out",
        read={"format": case.format, "options": case.options},
        write={"format": output},
    )
    return job, expected if output == "parquet" else [in_json(row) for row in expected]


def check(report: Report, directory: Path, expected: list[Row]) -> None:
    assert report.message is None
    counts = report.counts
    assert counts is not None
    assert (counts.read, counts.written, counts.failed) == (len(expected), len(expected), 0)
    assert without_order(rows_of(directory / "out")) == without_order(expected)


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(("name", "output"), ON_RAY)
def test_output_holds_the_rows_of_the_input_on_ray(tmp_path: Path, name: str, output: str) -> None:
    job, expected = copy_job(tmp_path, name, output)
    check(run_job(job).report, tmp_path, expected)


@pytest.mark.parametrize("name", CASES)
def test_output_holds_the_rows_of_the_input(tmp_path: Path, name: str) -> None:
    job, expected = copy_job(tmp_path, name, "parquet")
    check(run_without_ray(job, rows_per_task=200), tmp_path, expected)
