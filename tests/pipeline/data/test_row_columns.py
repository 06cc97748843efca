"""Internal columns: ids and states of rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import concat
from support.tiers import examples

MAX_ROWS = 1 << row_ids.ROW_BITS
FILES = st.integers(0, row_ids.MAX_FILES - 1)
NUMBERS = st.integers(0, MAX_ROWS - 1)
FEW = settings(max_examples=examples(100))


@FEW
@given(places=st.lists(st.tuples(FILES, NUMBERS), min_size=1))
def test_id_holds_file_and_row(places: list[tuple[int, int]]) -> None:
    ids = np.array([row_ids.pack(file, row) for file, row in places], dtype=np.int64)
    files, numbers = row_ids.unpack(ids)
    assert list(zip(files.tolist(), numbers.tolist(), strict=True)) == places


@FEW
@given(one=st.tuples(FILES, NUMBERS), other=st.tuples(FILES, NUMBERS))
def test_ids_follow_the_input_order(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (row_ids.pack(*one) < row_ids.pack(*other)) == (one < other)
    assert (row_ids.pack(*one) == row_ids.pack(*other)) == (one == other)


@FEW
@given(file=FILES, first=st.integers(0, MAX_ROWS - 100), count=st.integers(0, 20))
def test_good_rows_are_numbered_from_the_first(file: int, first: int, count: int) -> None:
    table = row_ids.with_ids(pa.table({"a": list(range(count))}), file, first)
    assert table.column(row_ids.ID).to_pylist() == [
        row_ids.pack(file, first + number) for number in range(count)
    ]
    assert table.column(row_ids.STATE).to_pylist() == [row_ids.GOOD] * count
    assert row_ids.data_columns(table) == ["a"]


def test_largest_id_fits_into_64_bits() -> None:
    assert row_ids.pack(row_ids.MAX_FILES - 1, MAX_ROWS - 1) == 2**63 - 1
    assert row_ids.MAX_FILES > 8_000_000
    assert MAX_ROWS > 10**12


def test_rows_without_columns_are_numbered() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}]))
    assert row_ids.with_ids(pa.Table.from_batches([batch]), 0, 0).num_rows == 2


def test_failed_row_has_step_error_and_traceback() -> None:
    table = row_ids.failed_row(7, "embed", ValueError("too long"), "line 1\n")
    failed = {row_ids.ID: 7, row_ids.STATE: row_ids.FAILED, row_ids.STEP: "embed"}
    assert table.to_pylist() == [
        {**failed, row_ids.ERROR: "ValueError: too long", row_ids.TRACEBACK: "line 1\n"}
    ]


@FEW
@given(states=st.lists(st.sampled_from(["good", "failed", "skipped", "end"]), min_size=1))
def test_split_separates_good_rows(states: list[str]) -> None:
    table = concat([_row(number, state) for number, state in enumerate(states)])
    good, rest = row_ids.split(table)
    assert good.column(row_ids.ID).to_pylist() == _numbers(states, {"good"})
    if rest is None:
        assert set(states) == {"good"}
        return
    assert rest.column(row_ids.ID).to_pylist() == _numbers(states, {"failed", "skipped", "end"})
    assert row_ids.data_columns(rest) == []
    assert set(good.column_names) <= {"a", row_ids.ID, row_ids.STATE}
    if "failed" in states:
        errors = [error for error in rest.column(row_ids.ERROR).to_pylist() if error]
        assert errors == ["ValueError: wrong"] * states.count("failed")


def test_split_does_not_copy_adjacent_rows() -> None:
    files = [row_ids.with_ids(pa.table({"a": [1, 2, 3]}), file, 0) for file in range(2)]
    table = concat([files[0], row_ids.end_of_file(0, 3), files[1], row_ids.end_of_file(1, 3)])
    good, _ = row_ids.split(table.combine_chunks())
    assert good.column("a").to_pylist() == [1, 2, 3, 1, 2, 3]
    first, second = (chunk.buffers()[1].address for chunk in good.column("a").chunks)
    assert first == second


def test_error_text_is_short_and_hides_secrets() -> None:
    text = row_ids.describe(ValueError("postgres://u:pw@h/db " + "x" * 5_000_000 + " the end"))
    assert len(text) < 5000
    assert text.startswith("ValueError: postgres://***@h/db xxx")
    assert text.endswith("xxx the end")


def test_split_of_an_empty_table_returns_it() -> None:
    table = row_ids.with_ids(pa.table({"a": pa.array([], pa.int64())}), 0, 0)
    assert row_ids.split(table) == (table, None)


def _row(number: int, state: str) -> pa.Table:
    if state == "good":
        return row_ids.with_ids(pa.table({"a": [number]}), 0, number)
    if state == "failed":
        return row_ids.failed_row(number, "step", ValueError("wrong"), "traceback")
    if state == "end":
        return row_ids.end_of_file(0, number)
    return row_ids.skipped_rows(pa.chunked_array([pa.array([number], pa.int64())]))


def _numbers(states: list[str], chosen: set[str]) -> list[int]:
    return [number for number, state in enumerate(states) if state in chosen]
