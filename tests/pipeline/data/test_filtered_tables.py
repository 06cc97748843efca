"""Filters on Delta and Iceberg tables: files and rows that are read, and those that are not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.inputs.iceberg import new_table, read_fields
from support.inputs.read_files import Input, open_versioned

Write = Callable[..., None]
"""Appends rows to a table, which may be partitioned by columns."""
MOMENT = dt.datetime(2026, 1, 1, 0, 0, 0, 1999, tzinfo=dt.UTC)


def write_delta(path: Path, rows: pa.Table, by: Sequence[str] = ()) -> None:
    write_deltalake(path, rows, mode="append", partition_by=list(by) or None)


def write_iceberg(path: Path, rows: pa.Table, by: Sequence[str] = ()) -> None:
    table = new_table(path, rows.schema)
    with table.update_spec() as update:
        for column in by:
            update.add_identity(column)
    table.append(rows)


@pytest.fixture(params=[write_delta, write_iceberg], ids=["delta", "iceberg"])
def write(request: pytest.FixtureRequest) -> Write:
    written: Write = request.param
    return written


def opened(path: Path, write: Write, **options: Any) -> Input:
    fields = {"format": "delta", "path": str(path)} if write is write_delta else read_fields(path)
    return open_versioned(fields | {"options": options})


@pytest.mark.parametrize(
    ("condition", "files", "kept"),
    [
        ("day == 'fri day'", 1, [0, 1, 2]),
        ("day != 'fri day' and id > 7", 1, [8]),
        ("id >= 5", 2, [5, 6, 7, 8]),
        ("id in [1, 4]", 2, [1, 4]),
        ("id == 1 or text == 'xxxx'", 2, [1, 4]),
        ("day is None", 0, []),
        ("startswith(day, 's')", 2, [3, 4, 5, 6, 7, 8]),
        ("id % 4 == 0", 3, [0, 4, 8]),
    ],
)
def test_filter_reads_only_files_that_may_have_such_rows(
    tmp_path: Path, write: Write, condition: str, files: int, kept: list[int]
) -> None:
    days = [day for day in ("fri day", "sat/day", "sun=day") for _ in range(3)]
    texts = ["x" * number for number in range(9)]
    write(tmp_path, pa.table({"id": range(9), "day": days, "text": texts}), ["day"])
    source = opened(tmp_path, write, filter=condition, columns=["id"])
    assert len(source.snapshot) == files
    outcome = source.read()
    assert (outcome.ids, outcome.filtered) == (kept, 3 * files - len(kept))
    assert all([*row] == ["id"] for row in outcome.good)


def test_statistics_of_nan_null_and_cut_values_skip_no_row(tmp_path: Path, write: Write) -> None:
    columns = {
        "real": [1.0, float("nan")],
        "text": ["a" * 100, None],
        "time": [MOMENT, MOMENT],
        "price": [Decimal("1.10"), Decimal("1.10")],
        "date": [dt.date(2026, 1, 1), dt.date(2026, 1, 2)],
    }
    write(tmp_path, pa.table(columns))
    for condition, count in {
        "real != 1.0": 1,
        "text is None": 1,
        f"text == '{'a' * 100}'": 1,
        "not text == 'b'": 1,
        "price > 1": 2,
        "price > 2": 0,
        "date >= '2026-01-02'": 1,
    }.items():
        assert len(opened(tmp_path, write, filter=condition).read().good) == count, condition


def test_dates_that_python_cannot_hold_have_no_bounds(tmp_path: Path) -> None:
    last = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
    days = pa.array([0, 5_000_000], pa.int32()).cast(pa.date32())
    write_delta(tmp_path, pa.table({"id": [0, 1], "time": [last, last], "day": days}))
    outcome = opened(tmp_path, write_delta, filter="time > '2026-01-01' and id < 2").read()
    assert (outcome.ids, set(outcome.bad)) == ([0], {(0, 1)})
