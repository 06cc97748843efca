"""Warnings stay with their rows: they are divided, joined, encoded and counted with them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.pipeline.commit.commit_groups import (
    commit_groups,
    counts_of_group,
    warnings_of_group,
)
from batchinference.pipeline.input import batch_of
from batchinference.pipeline.row_batch import RowBatch, merged, resized
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
from support.outputs.batches import failed, good

CUT, ROTATED = WarningName.TEXT_CUT, WarningName.ROTATED
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
    assert {row["id"] for row in part.warnings.to_pylist()} <= set(part.source.tolist())


@given(WARNED, st.integers(1, ROWS))
def test_each_part_of_a_divided_batch_has_the_warnings_of_its_rows(
    warnings: list[RowWarning], rows: int
) -> None:
    whole = batch(warnings)
    for first, rest in (whole.cut(rows), whole.divided(rows)):
        parts = [first, *([rest] if rest else [])]
        assert counted(*parts) == counted(whole)
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
    found = (each for group in commit_groups(rows) for each in warnings_of_group(group))
    return [(each.name, each.count, each.amount or 0) for each in sum_warnings(found)]


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
