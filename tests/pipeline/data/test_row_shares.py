"""Shares of input rows in steps that return zero, one or several rows for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline import row_ids
from batchinference.pipeline.execution.step_results import apply_step, divide
from batchinference.pipeline.steps import TransformResult
from support.tiers import examples

CHILDREN = st.lists(st.integers(0, 4), min_size=1, max_size=8)


def set_aside(row_id: int, share: int, error: Exception) -> pa.Table:
    return row_ids.failed_row(row_id, "step", error, share=share)


def shares_by_id(table: pa.Table) -> dict[int, int]:
    """Return the sum of the shares of each input row, by row id."""
    ids, shares = row_ids.ids_of(table), row_ids.shares_of(table)
    filled = np.full(len(ids), row_ids.FULL_SHARE) if shares is None else shares
    sums: dict[int, int] = {}
    for row_id, share in zip(ids.tolist(), filled.tolist(), strict=True):
        sums[row_id] = sums.get(row_id, 0) + share
    return sums


def repeat(counts: list[int], failing: set[int] = frozenset()) -> Any:  # type: ignore[assignment]
    """Return a step that repeats each row by its count and reports some as failed."""

    def step(batch: pa.Table) -> TransformResult:
        parents = np.repeat(np.arange(batch.num_rows), counts)
        parents = parents[~np.isin(parents, list(failing))]
        return TransformResult(
            batch.take(parents), parents, {row: ValueError("no") for row in failing}
        )

    return step


def batch(size: int) -> pa.Table:
    return row_ids.with_ids(pa.table({"n": range(size)}), file=3, first_row=10)


@given(CHILDREN)
@settings(max_examples=examples(100), deadline=None)
def test_shares_of_each_row_add_up(counts: list[int]) -> None:
    result = apply_step(repeat(counts), batch(len(counts)), set_aside)
    expected = {row_ids.pack(3, 10 + row): row_ids.FULL_SHARE for row in range(len(counts))}
    assert shares_by_id(result) == expected


@given(CHILDREN, st.data())
@settings(max_examples=examples(100), deadline=None)
def test_shares_add_up_after_two_steps_and_failures(counts: list[int], data: Any) -> None:
    first = apply_step(repeat(counts), batch(len(counts)), set_aside)
    good, rest = row_ids.split(first)
    more = data.draw(st.lists(st.integers(0, 4), min_size=good.num_rows, max_size=good.num_rows))
    failing = data.draw(st.sets(st.integers(0, good.num_rows - 1))) if good.num_rows else set()
    results = [apply_step(repeat(more, failing), good, set_aside)] if good.num_rows else []
    if rest is not None:
        results.append(rest)
    total: dict[int, int] = {}
    for table in results:
        for row_id, share in shares_by_id(table).items():
            total[row_id] = total.get(row_id, 0) + share
    assert set(total.values()) == {row_ids.FULL_SHARE}
    assert len(total) == len(counts)


def test_row_without_children_is_skipped() -> None:
    result = apply_step(repeat([2, 0, 1]), batch(3), set_aside)
    good, rest = row_ids.split(result)
    assert good.column("n").to_pylist() == [0, 0, 2]
    assert rest is not None
    assert row_ids.ids_of(rest).tolist() == [row_ids.pack(3, 11)]
    assert rest.column(row_ids.STATE).to_pylist() == [row_ids.SKIPPED]


def test_shares_are_stored_only_for_divided_rows() -> None:
    assert row_ids.SHARE not in apply_step(repeat([1, 0, 1]), batch(3), set_aside).column_names
    assert row_ids.SHARE in apply_step(repeat([1, 2, 1]), batch(3), set_aside).column_names


def test_share_is_divided_without_remainder() -> None:
    divided = divide(np.array([7, 1]), np.array([0, 0, 0, 1, 1]), 2)
    assert divided is not None
    assert divided.tolist() == [3, 2, 2, 1, 0]
