"""Every format of input files, with Parquet or JSON output.

The output holds the rows that plain Python reads from the input. Five formats run on Ray, the
others without Ray.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from batchinference.spec.report import Report
from support.documents.minimal import Document
from support.inputs.formats import CASES, write_parquet, write_text
from support.jobs.on_ray import data_files, job_document, run_job, without_order
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import Row, rows_of

PLAIN = ("text", "json lines", "json arrays", "csv", "parquet", "images", "binary")
WAYS = [*((name, "parquet") for name in CASES), *((name, "json") for name in PLAIN)]
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


@pytest.mark.parametrize(("name", "output"), [way for way in WAYS if way not in ON_RAY])
def test_output_holds_the_rows_of_the_input(tmp_path: Path, name: str, output: str) -> None:
    job, expected = copy_job(tmp_path, name, output)
    check(run_without_ray(job, rows_per_task=200), tmp_path, expected)


@pytest.mark.parametrize("compression", ["zstd", "gzip", "lz4", "none"])
def test_parquet_is_compressed(tmp_path: Path, compression: str) -> None:
    source = tmp_path / "in"
    source.mkdir()
    expected = write_parquet(source)
    write = {"format": "parquet", "compression": compression}
    read = {"format": "parquet"}
    job = job_document("copy", source, tmp_path / "out", read=read, write=write)
    run_without_ray(job, rows_per_task=200)
    used = {
        pq.ParquetFile(file).metadata.row_group(0).column(0).compression
        for file in data_files(tmp_path / "out")
    }
    assert used == {{"none": "UNCOMPRESSED"}.get(compression, compression.upper())}
    assert without_order(rows_of(tmp_path / "out")) == without_order(expected)


def test_json_lines_are_compressed(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    expected = write_text(source)
    job = job_document("zip", source, tmp_path / "out", write={"compression": "gzip"})
    run_without_ray(job, rows_per_task=200)
    texts = [gzip.decompress(file.read_bytes()) for file in data_files(tmp_path / "out")]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    assert without_order(rows) == without_order(expected)
