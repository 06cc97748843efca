"""Every format in, both formats out, row by row the same as plain Python reads it."""

from __future__ import annotations

import base64
import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from support.job_runs import data_files, job_document, run_job, without_order
from support.outputs import Row, rows_of

pytestmark = pytest.mark.usefixtures("ray")


def write_text(directory: Path) -> list[Row]:
    lines = [f'line {n} with ünïcode, "quotes" and a tab\t.' for n in range(30)]
    (directory / "a.txt").write_text("\n".join(lines[:20]) + "\n")
    (directory / "b.txt").write_text("\n\n" + "\n".join(lines[20:]))
    return [{"text": line} for line in lines]


def _records() -> list[Row]:
    return [
        {"id": n, "score": n / 7, "name": f"näme {n}", "tags": ["a"] * (n % 3), "in": {"deep": n}}
        for n in range(40)
    ]


def write_json_lines(directory: Path) -> list[Row]:
    records = _records()
    for number in range(2):
        lines = (json.dumps(record) for record in records[number::2])
        (directory / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return records


def write_json_arrays(directory: Path) -> list[Row]:
    records = _records()
    for number in range(2):
        (directory / f"{number}.json").write_text(json.dumps(records[number::2], indent=1))
    return records


def write_csv(directory: Path) -> list[Row]:
    rows: list[Row] = [
        {"id": n, "price": n + 0.25, "title": f'a "title", {n}', "sold": n % 2 == 0}
        for n in range(40)
    ]
    for number in range(2):
        with (directory / f"{number}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({**row, "sold": str(row["sold"]).lower()} for row in rows[number::2])
    return rows


def write_parquet(directory: Path) -> list[Row]:
    records = _records()
    for number in range(3):
        table = pa.Table.from_pylist(records[number::3])
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=5)
    return records


def write_images(directory: Path) -> list[Row]:
    random = np.random.default_rng(3)
    rows = []
    for number in range(12):
        pixels = random.integers(0, 255, (6, 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(directory / f"{number}.png")
        rows.append({"image": pixels.tolist()})
    return rows


def write_binary(directory: Path) -> list[Row]:
    contents = [bytes(range(n, 200)) for n in range(10)]
    for number, content in enumerate(contents):
        (directory / f"{number}.any").write_bytes(content)
    return [{"bytes": content} for content in contents]


@dataclass(frozen=True)
class Case:
    write: Callable[[Path], list[Row]]
    format: str
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "text": Case(write_text, "text"),
    "json lines": Case(write_json_lines, "json"),
    "json arrays": Case(write_json_arrays, "json", {"lines": False}),
    "csv": Case(write_csv, "csv"),
    "parquet": Case(write_parquet, "parquet"),
    "images": Case(write_images, "images"),
    "images of one size": Case(write_images, "images", {"size": [6, 5]}),
    "binary": Case(write_binary, "binary"),
}


def in_json(row: Row) -> Row:
    """A row as JSON can hold it."""
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in row.items()
    }


@pytest.mark.parametrize("output", ["parquet", "json"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_output_holds_the_rows_of_the_input(tmp_path: Path, case: Case, output: str) -> None:
    source = tmp_path / "in"
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
