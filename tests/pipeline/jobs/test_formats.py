"""Every format of files in, Parquet or JSON out: the rows that plain Python reads of the input."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support.inputs import CASES, write_parquet, write_text
from support.job_runs import data_files, job_document, run_job, without_order
from support.outputs import Row, rows_of

pytestmark = pytest.mark.usefixtures("ray")
PLAIN = ("text", "json lines", "json arrays", "csv", "parquet", "images", "binary")
WAYS = [*((name, "parquet") for name in CASES), *((name, "json") for name in PLAIN)]


def in_json(row: Row) -> Row:
    """A row as JSON can hold it."""
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in row.items()
    }


@pytest.mark.parametrize(("name", "output"), WAYS)
def test_the_output_holds_the_rows_of_the_input(tmp_path: Path, name: str, output: str) -> None:
    source, case = tmp_path / "in", CASES[name]
    source.mkdir()
    expected = case.write(source)
    job = job_document(
        "copy",
        source,
        tmp_path / "out",
        read={"format": case.format, "options": case.options},
        write={"format": output},
    )
    run = run_job(job)
    assert run.report.message is None
    assert run.counts == (len(expected), len(expected), 0, 0)
    wanted = expected if output == "parquet" else [in_json(row) for row in expected]
    assert without_order(rows_of(tmp_path / "out")) == without_order(wanted)


@pytest.mark.parametrize("compression", ["zstd", "gzip", "lz4", "none"])
def test_parquet_is_compressed_as_asked(tmp_path: Path, compression: str) -> None:
    source = tmp_path / "in"
    source.mkdir()
    expected = write_parquet(source)
    job = job_document(
        "copy",
        source,
        tmp_path / "out",
        read={"format": "parquet"},
        write={"format": "parquet", "compression": compression},
    )
    run_job(job)
    used = {
        pq.ParquetFile(file).metadata.row_group(0).column(0).compression
        for file in data_files(tmp_path / "out")
    }
    assert used == {{"none": "UNCOMPRESSED"}.get(compression, compression.upper())}
    assert without_order(rows_of(tmp_path / "out")) == without_order(expected)


def test_json_lines_are_compressed_as_asked(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    expected = write_text(source)
    run_job(job_document("zip", source, tmp_path / "out", write={"compression": "gzip"}))
    texts = [gzip.decompress(file.read_bytes()) for file in data_files(tmp_path / "out")]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    assert without_order(rows) == without_order(expected)
