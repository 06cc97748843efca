"""Memory reports of a process: a first report, and another one after growth."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event

import pytest

from batchinference.pipeline.execution import report_notes
from batchinference.pipeline.execution.block_codec import decode, encode
from batchinference.pipeline.execution.dataset import BlockCalls, BlockReader
from batchinference.pipeline.execution.report_notes import peak_bytes
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.row_batch import RowBatch, merged
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Stage
from batchinference.spec.steps import Step
from support.outputs.batches import end, good, plain

Peak = Callable[[int], None]


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Peak:
    """Return a function that sets the peak memory of the process, in bytes."""
    return lambda size: monkeypatch.setattr(report_notes, "peak_bytes", lambda: size)


def reading() -> Iterator[RowBatch]:
    yield good(0, 0, [1, 2])
    yield end(0, 2)


def reported(notes: tuple[tuple[str, str], ...]) -> list[tuple[str, int]]:
    """Return the step and the peak bytes of each note."""
    found = ((step, json.loads(note)) for step, note in notes)
    return [(step, note["peak_bytes"]) for step, note in found if "peak_bytes" in note]


def test_peak_is_plausible() -> None:
    assert 20 << 20 < peak_bytes() < 1 << 40


def segment_of(run: str, *stages: Stage) -> Segment:
    return Segment.of(stages, ErrorHandling(False, Location("/none")), run)


def test_stage_reports_once_and_after_growth(peak: Peak) -> None:
    slim = Step.model_validate({"name": "slim", "dropColumns": ["n"]})
    calls = BlockCalls("slim", segment_of("slim", Stage("slim", (slim,))), Event())
    notes = []
    for size in (100, 100, 109, 111, 90, 130):
        peak(size)
        notes.append(reported(merged(map(decode, calls(encode(good(0, 0, [1, 2]))))).notes))
    assert notes == [[("slim", 100)], [], [], [("slim", 111)], [], [("slim", 130)]]


def test_read_task_reports_after_its_rows(peak: Peak) -> None:
    peak(100)
    (block,) = BlockReader(reading, segment_of("one"))()
    read = decode(block)
    assert reported(read.notes) == [("read", 100)]
    assert plain(replace(read, notes=())) == plain(merged(reading()))


def test_read_tasks_report_growth_and_other_runs(peak: Peak) -> None:
    notes = []
    for size, run in ((100, "two"), (105, "two"), (150, "two"), (150, "three")):
        peak(size)
        task = pickle.loads(pickle.dumps(BlockReader(reading, segment_of(run))))
        notes.append(reported(merged(map(decode, task())).notes))
    assert notes == [[("read", 100)], [], [("read", 150)], [("read", 150)]]
