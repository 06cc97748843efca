"""The batches of a segment: their sizes, and windows of texts that are sorted by length."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution import segment
from batchinference.pipeline.execution.batch_size import (
    BATCH_SECONDS,
    FIRST_ROWS,
    MAX_GROWTH,
    WINDOW_BATCHES,
    BatchRows,
)
from batchinference.pipeline.execution.crash_isolation import NO_DEATHS, CrashNote, Isolation
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import StepRunner
from batchinference.pipeline.row_batch import NO_IDS, RowBatch, merged
from batchinference.spec.steps import Step
from support.outputs.batches import failed, filtered, good, outcomes
from support.outputs.stages import TOLERANT
from support.tiers import examples

UNIT, WINDOW = FIRST_ROWS, WINDOW_BATCHES * FIRST_ROWS
NO_STEPS = pickle.dumps(((), None))


@dataclass(frozen=True)
class Recorded(Segment):
    """Steps that do nothing but record their batches."""

    batches: list[RowBatch] = field(default_factory=list)
    stop_after: int = 1 << 30
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, read: Iterator[RowBatch]) -> Iterator[RowBatch]:
        return self.of_read(read, self.stopping)

    def _run_all(self, batch: RowBatch, stopping: threading.Event) -> Iterator[RowBatch]:
        self.batches.append(batch)
        if len(self.batches) == self.stop_after:
            self.stopping.set()
        yield batch


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all batches have the same size."""
    monkeypatch.setattr(BatchRows, "record_batch", lambda *_: None)


def texts(rows: int) -> list[RowBatch]:
    """Return one batch of rows with texts of random lengths."""
    lengths = np.random.default_rng(0).integers(1, 100, rows)
    return [good(0, 0, pa.table({"text": ["x" * int(length) for length in lengths]}))]


@pytest.mark.usefixtures("steady")
class TestWindows:
    def test_texts_are_sorted_by_length_and_results_are_in_input_order(self) -> None:
        steps = Recorded(NO_STEPS, "", UNIT, ("text",))
        (read,) = texts(WINDOW + 3 * UNIT + 3)
        results = list(steps.run(iter([read])))
        assert [len(one.ids) for one in results] == [WINDOW, 3 * UNIT + 3]
        assert [len(one.ids) for one in steps.batches] == [UNIT] * (WINDOW_BATCHES + 3) + [3]
        full = merged(results)
        assert full.table.equals(read.table)
        assert full.ids.tolist() == sorted(full.input_ids.tolist()) == read.ids.tolist()
        for window in (steps.batches[:WINDOW_BATCHES], steps.batches[WINDOW_BATCHES:]):
            lengths = [n for one in window for n in map(len, one.table["text"].to_pylist())]
            assert lengths == sorted(lengths, reverse=True)

    @pytest.mark.parametrize("columns", [(), ("n",), ("absent",)])
    def test_rows_without_texts_are_not_collected(self, columns: tuple[str, ...]) -> None:
        steps = Recorded(NO_STEPS, "", UNIT, columns)
        results = list(steps.run(iter([good(0, 0, range(3 * UNIT))])))
        assert [one.ids.tolist() for one in results] == [one.ids.tolist() for one in steps.batches]
        assert [len(one.ids) for one in results] == [UNIT] * 3

    def test_stopped_window_yields_the_rows_that_are_complete(self) -> None:
        steps = Recorded(NO_STEPS, "", UNIT, ("text",), stop_after=2)
        first = next(steps.run(iter(texts(5 * UNIT))))
        computed = merged(steps.batches).ids.tolist()
        assert len(computed) == 2 * UNIT
        assert first.ids.tolist() == sorted(computed)
        assert computed != sorted(computed)

    def test_stop_does_not_wait_for_the_rows_of_a_window(self) -> None:
        steps = Recorded(NO_STEPS, "", UNIT, ("text",))
        (text,) = texts(4 * UNIT)
        read = (text.select_inputs(text.input_ids[[row]]) for row in range(len(text.input_ids)))

        def stopped() -> Iterator[RowBatch]:
            yield next(read)
            steps.stopping.set()
            yield from read

        assert next(steps.run(stopped())).ids.tolist() == text.ids[:2].tolist()

    def test_batches_without_rows_do_not_end_the_windows(self) -> None:
        """The first batches of a task that runs again may be committed already."""
        steps = Recorded(NO_STEPS, "", UNIT, ("text",))
        (read,) = texts(WINDOW)
        results = list(steps.run(iter([read.select_inputs(NO_IDS), read])))
        assert [len(one.ids) for one in results] == [WINDOW]

    @pytest.mark.parametrize("limit", ["FILE_BYTES", "WINDOW_SECONDS"])
    def test_large_and_late_results_are_yielded_before_the_window_ends(
        self, monkeypatch: pytest.MonkeyPatch, limit: str
    ) -> None:
        monkeypatch.setattr(segment, limit, 0)
        results = list(Recorded(NO_STEPS, "", UNIT, ("text",)).run(iter(texts(5 * UNIT))))
        assert [len(one.ids) for one in results] == [UNIT] * 5

    @pytest.mark.parametrize(
        ("unit", "following", "window"), [(8, 16, 480), (8, 2000, 4096), (5000, 5000, 5000)]
    )
    def test_window_has_the_rows_of_several_batches(
        self, unit: int, following: int, window: int
    ) -> None:
        rows = BatchRows(unit)
        assert rows.window == rows.next
        rows.next, rows.have_texts = following, True
        assert rows.window == window


OUTCOMES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12)
"""For each input row, the number of good rows and of failed rows that steps have made from it."""


def made_of(row: int, rows: int, errors: int) -> RowBatch:
    """Return the rows that steps have made from an input row."""
    if not rows + errors:
        return filtered(0, row)
    ids = np.full(rows, row)
    made = merged([RowBatch(pa.table({"n": ids}), ids), *[failed(0, row)] * errors])
    return replace(made, input_ids=np.array([row]))


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the only step fail from row 12 on. Its batches have four rows."""
    step = Step.model_validate({"name": "own", "python": {"callable": "own:code"}, "batchSize": 4})

    def compute(rows: pa.Table) -> pa.Table:
        if any(number >= 12 for number in rows["n"].to_pylist()):
            raise ConnectionError("lost")
        return rows

    run = StepRunner(step, compute, replace(TOLERANT, waits=()))
    monkeypatch.setattr(Segment, "load", lambda _: run)


@pytest.mark.usefixtures("breaks")
@pytest.mark.parametrize("isolated", [False, True])
def test_results_before_an_error_are_yielded(*, isolated: bool) -> None:
    everything = Isolation(((CrashNote.of("own", np.arange(20)),),))
    isolation = everything if isolated else NO_DEATHS
    steps = Segment(NO_STEPS, isolation=isolation, first_rows=20)
    results = steps.of_read(iter([good(0, 0, range(20))]), threading.Event())
    assert next(results).ids.tolist() == list(range(12))
    with pytest.raises(JobFailure, match="lost"):
        next(results)


def test_stop_reaches_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[threading.Event | None] = []

    def stage(batch: RowBatch, stopping: threading.Event | None = None) -> Iterator[RowBatch]:
        stops.append(stopping)
        yield batch

    monkeypatch.setattr(Segment, "load", lambda _: stage)
    stopping = threading.Event()
    list(Segment(NO_STEPS).of_read(iter([good(0, 0, range(4))]), stopping))
    assert stops == [stopping]


class TestRowsPerBatch:
    """Steps get larger batches until a batch takes BATCH_SECONDS."""

    def test_batches_grow_while_they_are_fast(self) -> None:
        rows = BatchRows(0)
        assert rows.next == FIRST_ROWS
        rows.record_batch(rows.next, 0.0)
        assert rows.next == FIRST_ROWS * MAX_GROWTH

    def test_slow_batches_shrink_to_one_row(self) -> None:
        rows = BatchRows(0)
        rows.record_batch(64, 16 * BATCH_SECONDS)
        assert rows.next == 4
        rows.record_batch(4, 100 * BATCH_SECONDS)
        assert rows.next == 1

    def test_batches_of_a_model_follow_from_the_rows_that_a_filter_keeps(self) -> None:
        rows = BatchRows(8)
        rows.next = 400
        kept = replace(
            good(0, 0, range(1000)).select_inputs(np.arange(0, 1000, 10)), input_ids=np.arange(1000)
        )
        pairs = [(len(batch.ids), inputs) for batch, inputs in rows.cut(kept)]
        assert pairs == [(40, 400), (40, 400), (20, 200)]
        nothing = replace(kept, table=pa.table({}), ids=NO_IDS)
        assert [inputs for _, inputs in rows.cut(nothing)] == [1000]

    @settings(max_examples=examples(100), deadline=None)
    @given(OUTCOMES, st.integers(1, 4), st.randoms(use_true_random=False))
    def test_each_batch_has_all_errors_of_its_input_rows(
        self, made: list[tuple[int, int]], size: int, shuffle: Random
    ) -> None:
        prepared = merged(made_of(row, *counts) for row, counts in enumerate(made))
        order = shuffle.sample(range(len(prepared.ids)), len(prepared.ids))
        rows = BatchRows(size)
        rows.next = size
        parts = [part for part, _ in rows.cut(prepared.reordered(np.array(order, dtype=int)))]
        result = [row for part in parts for row in outcomes(part).items()]
        assert sorted(result) == sorted(outcomes(prepared).items())
        full = merged(parts)
        assert sorted(full.ids) == sorted(prepared.ids)
        errors = [batch.errors.column("id").to_pylist() for batch in (full, prepared)]
        assert sorted(errors[0]) == sorted(errors[1])

    @given(st.integers(1, 1000), st.lists(st.floats(0, 1000), max_size=9))
    def test_batches_are_a_multiple_of_the_batch_size(self, size: int, took: list[float]) -> None:
        rows = BatchRows(size)
        assert rows.next % size == 0
        for seconds in took:
            rows.record_batch(rows.next, seconds)
            assert rows.next >= size
            assert rows.next % size == 0
