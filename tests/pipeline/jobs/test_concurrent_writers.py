"""Four programs append rows to a table while jobs commit theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.spec.report import JobState
from support.jobs.text_table import TextTable
from support.outputs.other_writers import other_writers, rows_of_writers

LONG = pytest.mark.long("crash-points")


@pytest.mark.parametrize(
    "format_", ["delta", *(pytest.param(name, marks=LONG) for name in ("iceberg", "lance", "sql"))]
)
def test_every_row_is_in_the_table_once(format_: str, tmp_path: Path) -> None:
    table = TextTable(format_ if format_ == "lance" else f"{format_} merge", tmp_path)
    assert table.run().state == JobState.SUCCEEDED
    rows = ["a1", "a3", "b1"]
    with other_writers(format_, tmp_path):
        table.lines("b", ["b1"])
        assert table.run("append").state == JobState.SUCCEEDED
        if format_ != "lance":
            table.lines("c", ["a1", "c1"])
            assert table.run("merge").state == JobState.SUCCEEDED
            rows.append("c1")
    assert table.texts() == sorted([*rows, *rows_of_writers(tmp_path)])
    assert table.proven()
