"""Batches of rows with their provenance and warnings: filtered, failed, divided and merged."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.commit.commit_groups import (
    commit_groups,
    counts_of_group,
    warnings_of_group,
)
from batchinference.pipeline.input import batch_of
from batchinference.pipeline.row_batch import (
    READ_STEP,
    RowBatch,
    consecutive_ids,
    merged,
    pack_id,
    resized,
)
from batchinference.pipeline.row_warnings import (
    NO_WARNINGS,
    RowWarning,
    collect_warnings,
    split_warnings,
    warn,
    warning_table,
    with_warnings,
)
from batchinference.spec.warnings import WarningName, sum_warnings
from support.outputs.batches import (
    end,
    errors_of,
    failed,
    filtered,
    good,
    outcomes,
    plain,
    rows_of,
    shares_of,
)
from support.tiers import examples

CUT, ROTATED = WarningName.TEXT_CUT, WarningName.ROTATED


def test_rows_of_a_reader_are_their_own_input_rows() -> None:
    batch = good(3, 10, ["a", "b"])
    assert batch.ids.tolist() == batch.input_ids.tolist() == [pack_id(3, row) for row in (10, 11)]
    assert outcomes(batch) == dict.fromkeys(batch.ids.tolist(), "good")
    assert (batch.shares, batch.ends, batch.notes) == (None, (), ())


def test_unreadable_rows_share_their_error() -> None:
    error = ValueError("postgres://u:pw@h/db " + "x" * 5_000_000 + " the end")
    batch = RowBatch.unreadable(consecutive_ids(0, 4, 2), error)
    assert outcomes(batch) == {4: "failed", 5: "failed"}
    (text,) = set(errors_of(batch).values())
    assert len(text) < 5000
    assert text.startswith("ValueError: postgres://***@h/db xxx")
    assert text.endswith("xxx the end")
    assert set(batch.errors.column("step").to_pylist()) == {READ_STEP}


def test_step_divides_rows_into_good_failed_and_filtered_ones() -> None:
    before = good(0, 0, ["a", "b", "c", "d"])
    table = before.table.take([0, 0, 3])
    after = before.derived(table, np.array([0, 0, 3]), [(1, failed(0, 1).errors)])
    assert outcomes(after) == {0: "good", 1: "failed", 2: "filtered", 3: "good"}
    assert rows_of(after) == [(0, {"n": "a"}), (0, {"n": "a"}), (3, {"n": "d"})]
    # the next step gets two rows of input row 0
    last = after.derived(table.slice(0, 1), np.array([0]), [(1, failed(0, 0).errors)])
    assert last.errors.column("id").num_chunks == 1, "each part needs 3 KB"
    assert outcomes(last) == {0: "good, failed", 1: "failed", 2: "filtered", 3: "filtered"}


def test_batch_without_rows_keeps_its_columns_but_not_the_memory_of_its_rows() -> None:
    before = good(0, 0, ["a", "b"])
    after = before.derived(before.table.slice(0, 0), np.empty(0, dtype=np.int64), [])
    assert outcomes(after) == {0: "filtered", 1: "filtered"}
    for batch in (after, before.select_inputs(np.array([7])), merged([end(0, 2), after])):
        assert batch.table.schema == before.table.schema
        assert batch.table.get_total_buffer_size() < 16


def test_chosen_input_rows_keep_everything_about_them() -> None:
    rows = [good(0, 0, ["a"]), failed(0, 1), filtered(0, 2), good(0, 3, ["d"])]
    batch = replace(merged([*rows, end(0, 4)]), notes=(("own", "{}"),))
    part = batch.select_inputs(np.array([1, 2, 3]))
    assert outcomes(part) == {1: "failed", 2: "filtered", 3: "good"}
    assert rows_of(part) == [(3, {"n": "d"})]
    assert (part.shares, part.ends, part.notes) == (None, batch.ends, batch.notes)
    divided = replace(batch, shares=np.array([5, 6, 7, 8]))
    assert shares_of(divided.select_inputs(np.array([1, 3]))) == {1: 6, 3: 8}


def test_adjacent_rows_are_chosen_without_a_copy() -> None:
    """Images of a batch are hundreds of megabytes."""
    batch = good(0, 0, ["a", "b", "c", "d"])
    first, rest = batch.split_with_outcomes(3)
    assert [rows_of(first), rows_of(rest)] == [rows_of(batch)[:3], rows_of(batch)[3:]]
    memory = [column.chunk(0).buffers()[2].address for column in batch.table.columns]
    for part in (first, rest, batch.select_inputs(batch.ids[1:3])):
        assert [column.chunk(0).buffers()[2].address for column in part.table.columns] == memory
    apart = batch.select_inputs(batch.ids[[0, 2]])
    assert [row["n"] for _, row in rows_of(apart)] == ["a", "c"]


def test_merged_batches_hold_all_rows_of_each_batch() -> None:
    other = good(1, 0, pa.table({"m": [1.5]}))
    full = merged([good(0, 0, ["a"]), failed(0, 1), end(0, 2), other, filtered(1, 1), end(1, 2)])
    assert rows_of(full) == [(0, {"n": "a", "m": None}), (pack_id(1, 0), {"n": None, "m": 1.5})]
    assert list(outcomes(full).values()) == ["good", "failed", "good", "filtered"]
    assert full.ends == ((0, 2), (1, 2))
    assert plain(merged([])) == plain(RowBatch())
    assert merged([other]) is other


COUNTS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=8)


@settings(max_examples=examples(100), deadline=None)
@given(counts=COUNTS, rows=st.integers(1, 50), size=st.sampled_from([1, 500, 1 << 40]))
def test_resized_batches_have_a_number_of_rows_or_bytes(
    counts: list[tuple[int, int]], rows: int, size: int
) -> None:
    batches = [read(file, good_rows, bad) for file, (good_rows, bad) in enumerate(counts)]
    result = list(resized(iter(batches), lambda: rows, size))
    assert plain(merged(result)) == plain(merged(batches))
    assert all(len(batch.ids) <= rows for batch in result)
    assert all(len(batch.ids) == rows or batch.nbytes >= size for batch in result[:-1])


def read(file: int, good_rows: int, bad: int) -> RowBatch:
    """Return a file as it was read: good rows, then failed rows, then the end."""
    errors = [failed(file, good_rows + row) for row in range(bad)]
    return merged([good(file, 0, range(good_rows)), *errors, end(file, good_rows + bad)])


def test_failed_rows_count_towards_the_bytes_of_a_batch() -> None:
    batches = [failed(0, row, error=ValueError("x" * 1000)) for row in range(6)]
    assert [len(batch.input_ids) for batch in resized(batches, lambda: 1 << 40, 3000)] == [3, 3]


def test_parts_of_a_cut_batch_have_their_own_input_rows_whatever_their_order() -> None:
    """A decoded block may have its input rows in another order than its rows."""
    ids = np.array([5, 3, 4, 0])
    batch = RowBatch(pa.table({"n": ids}), ids, np.sort(ids))
    first, rest = batch.split_at(2)
    assert rest is not None
    assert sorted(first.input_ids.tolist()) == sorted(first.ids.tolist()) == [3, 5]
    assert sorted(rest.input_ids.tolist()) == sorted(rest.ids.tolist()) == [0, 4]


def test_warnings_of_rows_in_other_batches_stay_in_one_part() -> None:
    warnings = [RowWarning(row, CUT, 1) for row in (0, 1)]
    batch = good(0, 0, range(4)).with_warnings(warning_table("own", np.array([0, 9]), warnings))
    parts = batch.split_with_outcomes(2)
    rows = [row for part in parts for row in part.warnings.column("id").to_pylist()]
    assert sorted(rows) == [0, 9]


ROWS = 12
WARNED = st.lists(
    st.builds(
        RowWarning, st.integers(0, ROWS - 1), st.sampled_from([CUT, ROTATED]), st.integers(0, 9)
    ),
    max_size=9,
)


def batch(warnings: list[RowWarning]) -> RowBatch:
    rows = good(0, 0, list(range(ROWS)))
    return rows.with_warnings(warning_table("embed", rows.ids, warnings))


def counted(*batches: RowBatch) -> Counter[tuple[int, str, int]]:
    rows = (row for each in batches for row in each.warnings.to_pylist())
    return Counter((row["id"], row["name"], row["amount"]) for row in rows)


def assert_of_own_rows(part: RowBatch) -> None:
    assert {row["id"] for row in part.warnings.to_pylist()} <= set(part.input_ids.tolist())


@given(WARNED, st.integers(1, ROWS))
def test_each_part_of_a_divided_batch_has_the_warnings_of_its_rows(
    warnings: list[RowWarning], rows: int
) -> None:
    full = batch(warnings)
    for first, rest in (full.split_at(rows), full.split_with_outcomes(rows)):
        parts = [first, *([rest] if rest else [])]
        assert counted(*parts) == counted(full)
        for part in parts:
            assert_of_own_rows(part)


@given(WARNED, st.integers(1, ROWS))
def test_resized_and_merged_batches_have_all_warnings(
    warnings: list[RowWarning], rows: int
) -> None:
    parts = list(resized([batch(warnings)], lambda: rows, 1 << 30))
    assert counted(*parts) == counted(merged(parts)) == counted(batch(warnings))


@given(WARNED, st.sets(st.integers(0, ROWS - 1)))
def test_commit_counts_the_warnings_of_rows_that_have_not_failed(
    warnings: list[RowWarning], failing: set[int]
) -> None:
    rows = batch(warnings)
    remaining = np.array([row for row in range(ROWS) if row not in failing], dtype=np.int64)
    errors = [(row, failed(0, row).errors) for row in sorted(failing)]
    mixed = rows.derived(rows.table.take(pa.array(remaining)), remaining, errors)
    groups = list(commit_groups(mixed))
    total = sum_warnings(each for group in groups for each in warnings_of_group(group))
    left = [warning for warning in warnings if warning.row not in failing]
    assert {each.name: (each.count, each.amount or 0) for each in total} == {
        name: (
            len({warning.row for warning in own}),
            sum(warning.amount for warning in own if name.amount),
        )
        for name in (CUT, ROTATED)
        if (own := [warning for warning in left if warning.name == name])
    }
    warned = len({(warning.row, warning.name) for warning in left})
    assert sum(counts_of_group(group).warned for group in groups) == warned
    for each in total:
        first = min(warning.row for warning in left if warning.name == each.name)
        assert each.example == f"0:{first}"


def commit(rows: RowBatch) -> list[tuple[str, int, int]]:
    """Return the warnings that the commit of a batch counts: name, rows and amount."""
    warnings = (each for group in commit_groups(rows) for each in warnings_of_group(group))
    return [(each.name, each.count, each.amount or 0) for each in sum_warnings(warnings)]


def test_input_row_that_became_several_rows_counts_once() -> None:
    rows = good(0, 0, [1, 2]).derived(pa.table({"n": range(4)}), np.array([0, 0, 0, 1]), [])
    warnings = [RowWarning(0, CUT, 5), RowWarning(1, CUT, 7), RowWarning(3, CUT, 1)]
    assert commit(rows.with_warnings(warning_table("embed", rows.ids, warnings))) == [
        ("TextCut", 2, 13)
    ]


@pytest.mark.parametrize("left", [[1], []])
def test_warning_remains_if_a_part_of_its_row_fails(left: list[int]) -> None:
    rows = good(0, 0, [1]).derived(pa.table({"n": [1, 2]}), np.array([0, 0]), [])
    rows = rows.with_warnings(warning_table("embed", rows.ids, [RowWarning(1, CUT, 5)]))
    parents = np.array(left, dtype=np.int64)
    after = rows.derived(rows.table.take(pa.array(parents)), parents, [(0, failed(0, 0).errors)])
    assert commit(after) == [("TextCut", 1, 5)]
    both = [(row, failed(0, 0).errors) for row in (0, 1)]
    assert commit(rows.derived(rows.table.slice(0, 0), parents[:0], both)) == []


def test_merged_batches_keep_no_empty_parts_of_warnings() -> None:
    none, one = good(0, 0, [1]), batch([RowWarning(0, CUT, 1)])
    assert merged([none, none]).warnings == NO_WARNINGS
    assert merged([none, one, none]).warnings.column("id").num_chunks == 1
    assert merged([failed(0, 1), failed(0, 2)]).errors.column("id").num_chunks == 1


@pytest.mark.parametrize("others", [RowBatch(), merged([good(0, 1, [1]), failed(0, 2)])])
def test_warning_counts_if_its_row_is_in_another_commit(others: RowBatch) -> None:
    elsewhere = warning_table("embed", np.array([0]), [RowWarning(0, CUT, 5)])
    rows = merged([others, RowBatch(warnings=elsewhere)])
    assert commit(rows) == [("TextCut", 1, 5)]


@given(
    st.dictionaries(
        st.integers(0, 4),
        st.lists(st.builds(RowWarning, st.just(0), st.just(CUT), st.integers(0, 9)), max_size=2),
    )
)
def test_hidden_column_holds_the_warnings_of_a_reader(by_row: dict[int, list[RowWarning]]) -> None:
    table = pa.table({"n": range(5)})
    rows, warnings = split_warnings(with_warnings(table, by_row))
    assert rows.equals(table)
    assert [(each.row, each.amount) for each in warnings] == [
        (row, each.amount) for row in sorted(by_row) for each in by_row[row]
    ]


def test_reader_makes_rows_with_a_chosen_warning_failed_rows() -> None:
    ids = np.arange(3)
    warnings = [RowWarning(1, CUT, 7), RowWarning(2, ROTATED, 0)]
    rows = batch_of(pa.table({"n": range(3)}), ids, warnings, {"TextCut"})
    assert rows.ids.tolist() == [0, 2]
    (error,) = rows.errors.to_pylist()
    assert error["id"] == 1
    for part in ("TextCut", "7 tokens", "errors.warnings"):
        assert part in error["error"]
    assert counted(rows) == {(2, "Rotated", 0): 1}


def test_warnings_are_collected_by_the_innermost_owner() -> None:
    with collect_warnings() as outer:
        warn(ROTATED, row=3)
        with collect_warnings() as inner:
            warn(CUT, amount=2)
    assert outer == [RowWarning(3, ROTATED, 0)]
    assert inner == [RowWarning(0, CUT, 2)]
