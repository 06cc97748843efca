"""Which row killed the processes of a task: the decisions of the driver, and one isolated run."""

from __future__ import annotations

import pickle
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.execution import crashed_rows
from batchinference.pipeline.execution.crashed_rows import (
    MAX_REPEATS,
    MAX_RUNS,
    PARTS,
    CrashNote,
    Isolation,
    is_noted,
    next_isolation,
    noted_as,
    put_crash_note,
    remove_crash_note,
    take_crash_note,
)
from batchinference.pipeline.execution.fused import Steps
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.row_batch import RowBatch, merged, pack_id
from batchinference.pipeline.storage.location import Location
from support.outputs.batches import end, errors_of, good, outcomes
from support.tiers import examples

ROW, OTHER = CrashNote("own", 5, 5, 1), CrashNote("own", 7, 7, 1)
MANY = CrashNote("own", 0, 99, 100)
ALONE = Isolation(ROW, runs=3)


@pytest.mark.parametrize(
    ("before", "note", "max_rows", "after"),
    [
        (None, MANY, 1, Isolation(MANY)),
        (None, ROW, 1, Isolation(ROW)),
        (None, MANY, 0, None),
        (None, None, 1, None),
        (Isolation(MANY), ROW, 1, Isolation(ROW, runs=2)),
        (ALONE, ROW, 1, Isolation(None, (ROW,), 4)),
        (ALONE, OTHER, 1, Isolation(OTHER, runs=4)),
        (ALONE, MANY, 1, Isolation(MANY, runs=4)),
        (ALONE, None, 1, Isolation(ROW, runs=4, repeats=1)),
        (Isolation(ROW, repeats=MAX_REPEATS), None, 1, None),
        (Isolation(MANY), MANY, 1, Isolation(MANY, runs=2)),
        (Isolation(OTHER, (ROW,), 4), OTHER, 2, Isolation(None, (ROW, OTHER), 5)),
        (Isolation(OTHER, (ROW,), 4), OTHER, 1, None),
        (Isolation(ROW, runs=MAX_RUNS), ROW, 1, None),
        (Isolation(ROW, runs=MAX_RUNS), None, 1, None),
    ],
    ids=[
        "the rows of the first note are suspects",
        "the first note is of one row",
        "no rows may fail",
        "no step was running",
        "fewer rows",
        "the same row twice",
        "another row",
        "other rows",
        "nothing to blame",
        "nothing to blame too often",
        "the same rows twice",
        "a second row",
        "more rows than may fail",
        "too many runs",
        "too many runs with nothing to blame",
    ],
)
def test_what_follows_the_death_of_a_process(
    before: Isolation | None, note: CrashNote | None, max_rows: int, after: Isolation | None
) -> None:
    assert next_isolation(before, note, max_rows) == after


@pytest.mark.parametrize(
    ("rows", "goes_on"),
    [
        *(((5, 6, 8, 7), False), ((5, 6, 8, 9), True), ((1, 5, 6, 7, 8), False)),
        (tuple(pack_id(file, 0) for file in (7, 9, 8, 10)), False),
        (tuple(pack_id(file, row) for file in (7, 8) for row in (0, 1)), False),
        (tuple(pack_id(file, 0) for file in (7, 8, 9, 11)), True),
        (tuple(pack_id(file, 1) for file in (7, 8, 9, 10)), True),
    ],
    ids=str,
)
def test_crashes_of_adjacent_rows_are_not_the_fault_of_the_rows(
    rows: tuple[int, ...], goes_on: bool
) -> None:
    *crashed, last = (CrashNote("own", row, row, 1) for row in rows)
    following = next_isolation(Isolation(last, tuple(crashed)), last, 50)
    assert (following is not None) == goes_on


def death_of(isolation: Isolation, read: list[RowBatch], bad: set[int]) -> CrashNote | None:
    """Return the note with which an isolated run dies; None if it ends."""
    bad = bad - {note.first for note in isolation.crashed}
    for batch in read:
        suspects, others = isolation.divided(batch)
        for part in [*suspects, others]:
            if bad.intersection(part.ids.tolist()):
                return CrashNote.of("own", part.ids)
    return None


@settings(max_examples=examples(200), deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    places=st.sets(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3),
)
def test_exactly_the_rows_that_kill_their_process_are_found(
    sizes: list[int], places: set[float]
) -> None:
    read = [good(file, 0, range(size)) for file, size in enumerate(sizes)]
    ids = merged(read).ids
    bad = {int(ids[int(place * len(ids))]) for place in places}
    note = death_of(Isolation(), read, bad)
    isolation: Isolation | None = None
    while note is not None:
        isolation = next_isolation(isolation, note, len(bad))
        assert isolation is not None
        note = death_of(isolation, read, bad)
    assert isolation is not None
    assert {row.first for row in isolation.crashed} == bad
    assert isolation.runs <= 5 * len(bad)


@settings(max_examples=examples(200), deadline=None)
@given(
    rows=st.integers(1, 200),
    first=st.integers(-5, 205),
    size=st.integers(1, 200),
    noted=st.integers(1, 200),
)
def test_suspects_and_other_rows_are_all_rows(rows: int, first: int, size: int, noted: int) -> None:
    batch = merged([good(0, 0, range(rows)), end(0, rows)])
    suspect = CrashNote("own", first, first + size - 1, min(noted, size))
    suspects, others = Isolation(suspect).divided(batch)
    parts = list(suspects)
    found = merged([others, *parts])
    assert sorted(found.source.tolist()) == sorted(found.ids.tolist()) == list(range(rows))
    assert sorted(found.table.column("n").to_pylist()) == list(range(rows))
    assert found.ends == ((0, rows),)
    apart = [row for part in parts for row in part.ids.tolist()]
    assert apart == [row for row in range(rows) if suspect.first <= row <= suspect.last]
    assert all(len(part.ids) <= -(-suspect.rows // PARTS) for part in parts)


def test_note_names_the_rows_whatever_their_order() -> None:
    note = CrashNote.of("own", np.array([9, 3, 3, pack_id(1, 2)]))
    assert note == CrashNote("own", 3, pack_id(1, 2), 3)
    assert not note.is_one_row
    assert CrashNote.of("own", np.array([4, 4])) == CrashNote("own", 4, 4, 1)


def test_isolated_run_returns_crashed_rows_as_failed_rows(tmp_path: Path) -> None:
    handling = ErrorHandling(tolerant=True, input=Location(str(tmp_path)), values=True)
    steps = Steps(pickle.dumps(([], handling)))
    read = [good(0, 0, range(4)), good(0, 4, range(4)), end(0, 8)]
    isolation = Isolation(OTHER, (CrashNote("first", 1, 1, 1), ROW))
    results = merged(steps.applied_isolated(iter(read), isolation, Event()))
    crashed = {1, 5}
    assert outcomes(results) == {row: "failed" if row in crashed else "good" for row in range(8)}
    assert errors_of(results) == dict.fromkeys(crashed, f"WorkerCrashed: {crashed_rows.CRASHED}")
    records = {row["id"]: row for row in results.errors.to_pylist()}
    assert (records[1]["step"], records[1]["values"]) == ("first", '{"n": 1}')
    assert records[5]["step"] == "own"
    assert results.ends == ((0, 8),)


def keep_notes_in(notes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Store notes in a dict instead of Ray."""
    monkeypatch.setattr(crashed_rows, "put_note", notes.__setitem__)
    monkeypatch.setattr(crashed_rows, "read_note", notes.get)
    monkeypatch.setattr(crashed_rows, "remove_note", lambda name: notes.pop(name, None))


def test_notes_of_the_running_task(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: dict[str, str] = {}
    keep_notes_in(notes, monkeypatch)
    put_crash_note(ROW)
    assert (notes, is_noted()) == ({}, False)
    with noted_as("task"):
        put_crash_note(ROW)
        assert is_noted()
        assert take_crash_note("task") == ROW
        assert take_crash_note("task") is None
        put_crash_note(OTHER)
        remove_crash_note()
    assert (take_crash_note("task"), take_crash_note("unknown"), is_noted()) == (None, None, False)
    assert notes == {}


def test_note_of_an_earlier_run_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = {"task": ROW.serialized()}
    keep_notes_in(notes, monkeypatch)
    with noted_as("task"):
        assert take_crash_note("task") is None
