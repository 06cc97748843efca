"""NaN and infinity that an output cannot hold become null: each is counted, or fails its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.output.tables.sql import SqlTable
from batchinference.spec.report import Report
from batchinference.spec.write import WriteSql
from support.documents.minimal import document
from support.jobs.without_ray import run_without_ray

NAN, INF = float("nan"), float("inf")
ROWS = pa.table(
    {
        "id": [0, 1, 2, 3, 4],
        "score": [0.5, NAN, None, INF, 1.5],
        "boxes": [[1.0, NAN], [2.0], None, [-INF, NAN], []],
        "meta": [{"x": 1.0}, {"x": NAN}, None, {"x": 2.0}, {"x": None}],
    }
)
OUTPUTS: list[tuple[dict[str, Any], int, int]] = [
    ({"format": "json"}, 3, 6),
    ({"format": "json", "columns": ["id", "score"]}, 2, 2),
    ({"format": "json", "columns": ["id"]}, 0, 0),
    ({"format": "json", "partitionBy": ["score"]}, 3, 4),
    ({"format": "csv"}, 3, 4),
    ({"format": "webdataset"}, 3, 6),
    ({"format": "sql", "table": "t"}, 3, 5),
    ({"format": "parquet"}, 0, 0),
]
"""Outputs, with the number of rows and of values that are written as null."""


def run(directory: Path, write: dict[str, Any], **errors: Any) -> Report:
    source = directory / "in.parquet"
    pq.write_table(ROWS, source)
    place = {"path": str(directory / "out")}
    if write["format"] == "sql":
        place["url"] = f"sqlite:///{directory / 'out.db'}"
    job = document(
        "nulled",
        read={"format": "parquet", "paths": [str(source)]},
        steps=[],
        write={**write, **place},
        errors=errors,
    )
    return run_without_ray(job)


@pytest.mark.parametrize(("write", "rows", "values"), OUTPUTS, ids=str)
def test_each_value_that_becomes_null_is_counted(
    tmp_path: Path, write: dict[str, Any], rows: int, values: int
) -> None:
    report = run(tmp_path, write)
    assert report.counts is not None
    assert (report.counts.written, report.counts.warned) == (5, rows)
    warned = [(each.name, each.step, each.count, each.amount) for each in report.warnings]
    assert warned == ([("WrittenAsNull", "write", rows, values)] if rows else [])


def test_tasks_need_no_connection_to_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the driver connects: the variable with the URL may be set for the driver only."""
    monkeypatch.delenv("DATABASE", raising=False)
    fields = {"format": "sql", "urlEnv": "DATABASE", "table": "t", "path": "out"}
    table = SqlTable(WriteSql.model_validate(fields))
    assert table.nulled_rows(ROWS) == {0: 1, 1: 1, 3: 2}
    monkeypatch.setenv("DATABASE", "nosuchdriver://host/db")
    assert table.nulled_rows(ROWS) == {0: 1, 1: 1, 3: 2}


def test_job_may_refuse_rows_with_such_values(tmp_path: Path) -> None:
    policy = [{"name": "WrittenAsNull", "action": "fail"}]
    report = run(tmp_path, {"format": "json"}, maxRows=3, warnings=policy)
    assert report.counts is not None
    assert (report.counts.written, report.counts.failed) == (2, 3)
    assert report.warnings == []
