"""Memory reports of a process: a first report, and another one after growth."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from batchinference.pipeline import row_ids
from batchinference.pipeline.execution import memory
from batchinference.pipeline.execution.memory import MemoryWatch, ReadWatch, peak_bytes
from support.inputs.read_files import own_columns

Peak = Callable[[int], None]


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Peak:
    """Return a function that sets the peak memory of the process, in bytes."""
    return lambda size: monkeypatch.setattr(memory, "peak_bytes", lambda: size)


def table() -> pa.Table:
    return row_ids.with_ids(pa.table({"n": [1, 2]}), 0, 0)


def reading() -> Iterator[pa.Table]:
    yield table()
    yield row_ids.end_of_file(0, 2)


def reported(tables: list[pa.Table]) -> list[tuple[str, int]]:
    """Return the step and the peak bytes of each note."""
    return [
        (row[row_ids.STEP], json.loads(row[row_ids.ERROR])["peak_bytes"])
        for one in tables
        for row in own_columns(one)
        if row[row_ids.STATE] == row_ids.NOTE
    ]


def test_peak_is_plausible() -> None:
    assert 20 << 20 < peak_bytes() < 1 << 40


def test_stage_reports_once_and_after_growth(peak: Peak) -> None:
    watch = MemoryWatch("embed", lambda given: given)
    notes = []
    for size in (100, 100, 109, 111, 90, 130):
        peak(size)
        notes.append(reported([watch(table())]))
    assert notes == [[("embed", 100)], [], [], [("embed", 111)], [], [("embed", 130)]]


def test_read_task_reports_after_its_rows(peak: Peak) -> None:
    peak(100)
    first, end, note = ReadWatch("one", "read", reading)()
    assert (first, end) == (table(), row_ids.end_of_file(0, 2))
    assert reported([note]) == [("read", 100)]


def test_read_tasks_report_growth_and_other_inputs(peak: Peak) -> None:
    notes = []
    for size, name in ((100, "two"), (105, "two"), (150, "two"), (150, "three")):
        peak(size)
        task = pickle.loads(pickle.dumps(ReadWatch(name, "read", reading)))
        notes.append(reported(list(task())))
    assert notes == [[("read", 100)], [], [("read", 150)], [("read", 150)]]
