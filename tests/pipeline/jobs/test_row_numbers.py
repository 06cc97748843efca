"""`write.rowNumber` adds a column with the number of the input row of each row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchinference.pipeline.output.output_rows import first_rows
from batchinference.spec.report import JobState
from support.documents.parsed_write import write_of
from support.jobs.on_ray import data_files, job_document, run_in_process, write_lines
from support.jobs.user_code import step_until
from support.jobs.without_ray import INPUT, run_without_ray, small_job
from support.outputs.verify_command import verified

FILE = 10**12
"""The difference between the numbers of the first rows of two files."""


def by_number(output: Path, format_: str = "parquet") -> list[dict[str, Any]]:
    return sorted(first_rows(write_of(format_, output), 10**6), key=lambda row: int(row["row"]))


@pytest.mark.parametrize(
    "write",
    [
        {"format": "parquet", "columns": ["values"]},
        {"format": "json", "compression": "gzip"},
        {"format": "csv", "rowsPerFile": 3},
        {"format": "parquet", "rowsPerFile": 2},
    ],
    ids=str,
)
def test_output_has_the_numbers_of_the_input(tmp_path: Path, write: dict[str, Any]) -> None:
    """Row 3 is filtered, some rows become several, and others none."""
    (tmp_path / "in").mkdir()
    expected = []
    for file, (name, rows) in enumerate(INPUT.items()):
        lines = [json.dumps({"n": n, "values": [*map(abs, values)]}) + "\n" for n, values in rows]
        (tmp_path / "in" / name).write_text("".join(lines))
        numbered = enumerate(rows)
        expected += [(file * FILE + row, abs(v)) for row, (n, vs) in numbered for v in vs if n != 3]
    run_without_ray(small_job(tmp_path / "in", tmp_path / "out", rowNumber="row", **write))
    rows = by_number(tmp_path / "out", write["format"])
    assert next(iter(rows[0])) == "row"
    assert sorted((row["row"], row["values"]) for row in rows) == sorted(expected)
    size = write.get("rowsPerFile", len(rows))
    assert len(data_files(tmp_path / "out")) >= -(-len(rows) // size)
    assert verified(tmp_path / "out").result == "proven"


def test_retried_and_appended_rows_have_their_numbers(tmp_path: Path) -> None:
    lines = {f"{n}.txt": [f"{n} {m}" + " bad" * (m % 10 == 3) for m in range(30)] for n in "ab"}
    source, steps = write_lines(tmp_path / "in", lines), [step_until(tmp_path / "repaired")]
    document = job_document("order", source, tmp_path / "out", errors={"maxRows": 10}, steps=steps)
    document["spec"]["write"] |= {"rowNumber": "row", "format": "parquet", "mode": "append"}
    assert run_in_process(document).counts == (60, 54, 6, 0)
    numbers = [FILE * file + row for file in (0, 1) for row in range(30)]
    rows = by_number(tmp_path / "out")
    assert [row["row"] for row in rows] == [number for number in numbers if number % 10 != 3]
    (tmp_path / "repaired").touch()
    document["spec"]["errors"]["retryFailedRows"] = True
    assert run_in_process(document).report.state == JobState.SUCCEEDED
    rows = by_number(tmp_path / "out")
    assert [row["row"] for row in rows] == numbers
    assert [row["text"] for row in rows] == [*lines["a.txt"], *lines["b.txt"]]
    write_lines(tmp_path / "in", {"0.txt": ["new"]})
    run_in_process(document)
    rows = by_number(tmp_path / "out")
    assert [row["row"] for row in rows] == [*numbers, 2 * FILE]
