"""`write.rowNumber` numbers rows, and `write.order: input` puts them in the order of the input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.row_coverage import RowSet
from batchinference.pipeline.output import input_order
from batchinference.pipeline.output.file_layout import FileLayout
from batchinference.pipeline.output.input_order import RowOrder, ordered_rewrites
from batchinference.pipeline.output.preview import first_rows
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.row_batch import FULL_SHARE, NO_IDS, RowBatch, merged
from batchinference.spec.report import JobState
from support.documents.parsed_write import write_of
from support.jobs.on_ray import data_files, job_document, run_in_process, write_lines
from support.jobs.without_ray import INPUT, run_without_ray, small_job
from support.outputs.batches import failed, filtered
from support.outputs.builders import begin_attempt, close_attempt, committing, layout_of
from support.outputs.verify_command import verified

FILE = 10**12
"""The difference between the numbers of the first rows of two files."""
ORDERED = {"rowNumber": "row", "order": "input"}


def in_name_order(output: Path, format_: str = "parquet") -> list[dict[str, Any]]:
    return first_rows(write_of(format_, output), 10**6)


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
def test_output_has_the_numbers_and_the_order_of_the_input(
    tmp_path: Path, write: dict[str, Any]
) -> None:
    """Row 3 is filtered, some rows become several, and others none."""
    (tmp_path / "in").mkdir()
    expected = []
    for file, (name, rows) in enumerate(INPUT.items()):
        lines = [json.dumps({"n": n, "values": [*map(abs, values)]}) + "\n" for n, values in rows]
        (tmp_path / "in" / name).write_text("".join(lines))
        numbered = enumerate(rows)
        expected += [(file * FILE + row, abs(v)) for row, (n, vs) in numbered for v in vs if n != 3]
    run_without_ray(small_job(tmp_path / "in", tmp_path / "out", **ORDERED, **write))
    rows = in_name_order(tmp_path / "out", write["format"])
    assert next(iter(rows[0])) == "row"
    assert [(row["row"], row["values"]) for row in rows] == expected
    size = write.get("rowsPerFile", len(rows))
    assert len(data_files(tmp_path / "out")) >= -(-len(rows) // size)
    assert verified(tmp_path / "out").result == "proven"


@pytest.mark.usefixtures("own_code")
def test_retried_and_appended_rows_are_in_input_order(tmp_path: Path) -> None:
    lines = {f"{n}.txt": [f"{n} {m}" + " bad" * (m % 10 == 3) for m in range(30)] for n in "ab"}
    step = {"callable": "own_code:fails_until", "method": "map"}
    step["callArgs"] = {"file": str(tmp_path / "repaired")}
    source = write_lines(tmp_path / "in", lines)
    document = job_document("order", source, tmp_path / "out", errors={"maxRows": 10},
                            steps=[{"name": "own", "python": step}])  # fmt: skip
    document["spec"]["write"] |= {**ORDERED, "format": "parquet", "mode": "append"}
    assert run_in_process(document).counts == (60, 54, 6, 0)
    numbers = [FILE * file + row for file in (0, 1) for row in range(30)]
    found = in_name_order(tmp_path / "out")
    assert [row["row"] for row in found] == [number for number in numbers if number % 10 != 3]
    (tmp_path / "repaired").touch()
    document["spec"]["errors"]["retry"] = True
    assert run_in_process(document).report.state == JobState.SUCCEEDED
    found = in_name_order(tmp_path / "out")
    assert [row["row"] for row in found] == numbers
    assert [row["text"] for row in found] == [*lines["a.txt"], *lines["b.txt"]]
    write_lines(tmp_path / "in", {"0.txt": ["new"]})
    run_in_process(document)
    found = in_name_order(tmp_path / "out")
    assert sorted(row["row"] for row in found) == [*numbers, 2 * FILE]


def rows_at(*numbers: int, table: pa.Table | None = None) -> RowBatch:
    ids = np.array(numbers, dtype=np.int64)
    table = pa.table({"n": numbers}) if table is None else table
    return RowBatch(table, ids, np.unique(ids))


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    source = write_lines(tmp_path / "in", {"a.txt": ["x"] * 99})
    return begin_attempt(layout_of(tmp_path / "out"), source)


def ordered(attempt: Attempt, *batches: RowBatch, **order: Any) -> list[list[int]]:
    """Commit batches, put the rows in order, and return the row numbers of each file by name."""
    committer = committing(attempt, layout=FileLayout(row_number="row"))
    for task, batch in enumerate(batches):
        committer.put(batch, task)
    end, rows = close_attempt(attempt), RowOrder("row", **order)
    entries = rewritten(attempt, end.entries, rows)
    assert ordered_rewrites(attempt, entries, ParquetWriter("snappy"), rows)[0] == []
    attempt.put_unified(end.only(entries))
    attempt.remove_orphans(entries)
    after = attempt.load_committed()
    assert replace(after.counts, read=0) == replace(end.counts, read=0)
    held = RowSet.of(end.entries)
    assert RowSet.of(after.entries).missing(1, {0: 99}) == held.missing(1, {0: 99})
    files = sorted(data_files(Path(attempt.layout.output.path)))
    return [pq.read_table(file).column("row").to_pylist() for file in files]


def rewritten(
    attempt: Attempt, entries: list[ManifestEntry], order: RowOrder
) -> list[ManifestEntry]:
    tasks, others = ordered_rewrites(attempt, entries, ParquetWriter("snappy"), order)
    return [*others, *(entry for task in tasks for entry in task())]


def test_rows_are_sorted_within_files_and_across_files(attempt: Attempt) -> None:
    batches = [rows_at(7, 5), rows_at(6), rows_at(3, 0, 0), rows_at(1, 8), filtered(0, 2)]
    assert ordered(attempt, *batches, rows_per_file=2, merges=False) == [
        [0, 0], [1, 3], [5, 6], [7, 8],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "rows_per_file", "expected"),
    [
        ("FILE_BYTES", None, [[0, 1, 2], [3, 4, 5]]),
        ("MAX_FILE_BYTES", 4, [[0, 1, 2], [3], [4, 5]]),
        ("MAX_FILE_BYTES", 2, [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_files_are_limited_by_their_memory(
    attempt: Attempt,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    rows_per_file: int | None,
    expected: list[list[int]],
) -> None:
    table = pa.table({"n": [bytes(10_000)] * 3})
    monkeypatch.setattr(input_order, limit, 31_000)
    batches = rows_at(0, 2, 4, table=table), rows_at(1, 3, 5, table=table)
    assert ordered(attempt, *batches, rows_per_file=rows_per_file) == expected


def test_files_that_are_in_order_are_not_rewritten(attempt: Attempt) -> None:
    committer = committing(attempt, layout=FileLayout(row_number="row"))
    for task in range(3):
        committer.put(rows_at(task), task)
    entries = close_attempt(attempt).entries
    order = RowOrder("row", merges=False)
    assert ordered_rewrites(attempt, entries, ParquetWriter("snappy"), order) == ([], entries)


def part(*numbers: int, rows: int) -> RowBatch:
    """Return half of an input row with this number; it has this many rows."""
    ids = np.array(numbers * rows, dtype=np.int64)
    source = np.array(numbers, dtype=np.int64)
    table = pa.table({"n": ids}) if rows else RowBatch().table
    return RowBatch(table, ids, source, shares=np.array([FULL_SHARE // 2]),
                    filtered=NO_IDS if rows else source)  # fmt: skip


def test_parts_of_a_row_are_joined(attempt: Attempt) -> None:
    """The other part of row 3 was filtered."""
    batches = [part(2, rows=2), rows_at(4), part(3, rows=1), part(2, rows=1), part(3, rows=0)]
    assert ordered(attempt, *batches, rows_at(1)) == [[1, 2, 2, 2, 3, 4]]


def test_partly_failed_rows_have_separate_files(attempt: Attempt) -> None:
    """A retry of failed rows removes their entry with all of its files."""
    mixed = merged([rows_at(2), replace(failed(0, 2), source=NO_IDS)])
    assert ordered(attempt, rows_at(1, 3), mixed) == [[1, 3], [2]]


def test_rows_without_a_common_type_have_separate_files(attempt: Attempt) -> None:
    text = pa.table({"n": ["a", "b"]})
    assert ordered(attempt, rows_at(0, 4), rows_at(1, 3, table=text), rows_at(2)) == [
        [0, 2, 4], [1, 3],
    ]  # fmt: skip
