"""The batches of fused tasks: their sizes, and windows of texts that are sorted by length."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.pipeline.execution import batch_size, fused
from batchinference.pipeline.execution.batch_size import BatchRows
from batchinference.pipeline.execution.fused import Steps
from batchinference.pipeline.row_batch import NO_IDS, RowBatch, merged
from support.outputs.batches import good

UNIT = 8
NO_STEPS = pickle.dumps(((), None))


@dataclass(frozen=True)
class Recorded(Steps):
    """Steps that do nothing but record their batches."""

    batches: list[RowBatch] = field(default_factory=list)
    stop_after: int = 1 << 30
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, read: Iterator[RowBatch]) -> Iterator[RowBatch]:
        return self.applied_to(read, self.stopping)

    def _results(self, batch: RowBatch) -> Iterator[RowBatch]:
        self.batches.append(batch)
        if len(self.batches) == self.stop_after:
            self.stopping.set()
        yield batch


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all batches have the same size, and windows four times as many rows."""
    monkeypatch.setattr(batch_size, "FIRST_ROWS", UNIT)
    monkeypatch.setattr(batch_size, "WINDOW_BATCHES", 4)
    monkeypatch.setattr(BatchRows, "took", lambda *_: None)


def texts(rows: int) -> list[RowBatch]:
    """Return one batch of rows with texts of random lengths."""
    lengths = np.random.default_rng(0).integers(1, 100, rows)
    return [good(0, 0, pa.table({"text": ["x" * int(length) for length in lengths]}))]


@pytest.mark.usefixtures("steady")
class TestWindows:
    def test_texts_are_sorted_by_length_and_results_are_in_input_order(self) -> None:
        steps = Recorded(NO_STEPS, UNIT, ("text",))
        (read,) = texts(7 * UNIT + 3)
        results = list(steps.run(iter([read])))
        assert [len(one.ids) for one in results] == [4 * UNIT, 3 * UNIT + 3]
        assert [len(one.ids) for one in steps.batches] == [UNIT] * 7 + [3]
        whole = merged(results)
        assert whole.table.equals(read.table)
        assert whole.ids.tolist() == sorted(whole.source.tolist()) == read.ids.tolist()
        for window in (steps.batches[:4], steps.batches[4:]):
            lengths = [n for one in window for n in map(len, one.table["text"].to_pylist())]
            assert lengths == sorted(lengths, reverse=True)

    @pytest.mark.parametrize("columns", [(), ("n",), ("absent",)])
    def test_rows_without_texts_are_not_collected(self, columns: tuple[str, ...]) -> None:
        steps = Recorded(NO_STEPS, UNIT, columns)
        results = list(steps.run(iter([good(0, 0, range(3 * UNIT))])))
        assert [one.ids.tolist() for one in results] == [one.ids.tolist() for one in steps.batches]
        assert [len(one.ids) for one in results] == [UNIT] * 3

    def test_stopped_window_yields_the_rows_that_are_complete(self) -> None:
        steps = Recorded(NO_STEPS, UNIT, ("text",), stop_after=2)
        first = next(steps.run(iter(texts(5 * UNIT))))
        computed = merged(steps.batches).ids.tolist()
        assert len(computed) == 2 * UNIT
        assert first.ids.tolist() == sorted(computed)
        assert computed != sorted(computed)

    def test_stop_does_not_wait_for_the_rows_of_a_window(self) -> None:
        steps = Recorded(NO_STEPS, UNIT, ("text",))
        (whole,) = texts(4 * UNIT)
        read = (whole.only(whole.source[[row]]) for row in range(len(whole.source)))

        def stopped() -> Iterator[RowBatch]:
            yield next(read)
            steps.stopping.set()
            yield from read

        assert next(steps.run(stopped())).ids.tolist() == whole.ids[:2].tolist()

    def test_batches_without_rows_do_not_end_the_windows(self) -> None:
        """The first batches of a task that runs again may be committed already."""
        steps = Recorded(NO_STEPS, UNIT, ("text",))
        (read,) = texts(4 * UNIT)
        results = list(steps.run(iter([read.only(NO_IDS), read])))
        assert [len(one.ids) for one in results] == [4 * UNIT]

    @pytest.mark.parametrize("limit", ["FILE_BYTES", "WINDOW_SECONDS"])
    def test_large_and_late_results_are_yielded_before_the_window_ends(
        self, monkeypatch: pytest.MonkeyPatch, limit: str
    ) -> None:
        monkeypatch.setattr(fused, limit, 0)
        results = list(Recorded(NO_STEPS, UNIT, ("text",)).run(iter(texts(5 * UNIT))))
        assert [len(one.ids) for one in results] == [UNIT] * 5

    @pytest.mark.parametrize(
        ("unit", "following", "window"), [(8, 16, 64), (8, 2000, 4096), (5000, 5000, 5000)]
    )
    def test_window_has_the_rows_of_several_batches(
        self, unit: int, following: int, window: int
    ) -> None:
        rows = BatchRows(unit)
        assert rows.window == rows.next
        rows.next, rows.have_texts = following, True
        assert rows.window == window


class TestRowsPerBatch:
    """Steps get larger batches until a batch takes BATCH_SECONDS."""

    def test_batches_grow_while_they_are_fast(self) -> None:
        rows = BatchRows(0)
        assert rows.next == batch_size.FIRST_ROWS
        rows.took(rows.next, 0.0)
        assert rows.next == batch_size.FIRST_ROWS * batch_size.MAX_GROWTH

    def test_slow_batches_shrink_to_one_row(self) -> None:
        rows = BatchRows(0)
        rows.took(64, 16 * batch_size.BATCH_SECONDS)
        assert rows.next == 4
        rows.took(4, 100 * batch_size.BATCH_SECONDS)
        assert rows.next == 1

    @given(st.integers(1, 1000), st.lists(st.floats(0, 1000), max_size=9))
    def test_batches_are_a_multiple_of_the_batch_size(self, size: int, took: list[float]) -> None:
        rows = BatchRows(size)
        assert rows.next % size == 0
        for seconds in took:
            rows.took(rows.next, seconds)
            assert rows.next >= size
            assert rows.next % size == 0
