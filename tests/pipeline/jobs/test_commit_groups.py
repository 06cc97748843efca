"""Groups of rows of a commit that count together: each row is in exactly one group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.commit.commit_groups import (
    commit_groups,
    counts_of_group,
    row_ranges_of,
    shares_of,
)
from batchinference.pipeline.row_batch import FULL_SHARE, RowBatch, merged
from batchinference.spec.progress import Counts
from support.outputs.batches import end, failed, filtered, good, outcomes
from support.tiers import examples

BUILDERS: dict[str, Callable[[int], RowBatch]] = {
    "good": lambda row: good(0, row, [row]),
    "failed": lambda row: failed(0, row),
    "filtered": lambda row: filtered(0, row),
}


def batch_of(
    outcomes_by_row: dict[int, list[str]], shares: dict[int, int] | None = None
) -> RowBatch:
    """Return rows with these outcomes for each input row, and the share of each input row."""
    made = merged(
        BUILDERS[outcome](row) for row, names in outcomes_by_row.items() for outcome in names
    )
    source = np.array([*outcomes_by_row], dtype=np.int64)
    kept = (
        None
        if shares is None
        else np.array([shares[row] for row in outcomes_by_row], dtype=np.int64)
    )
    return replace(made, input_ids=source, shares=kept)


def outcome_counts(group: RowBatch) -> Counter[tuple[int, str]]:
    """Return the input row and the outcome of each row."""
    result = {"good": group.ids, "filtered": group.filtered}
    result["failed"] = group.errors.column("id").to_numpy()
    return Counter((row, outcome) for outcome, ids in result.items() for row in ids.tolist())


def whole_rows(group: RowBatch) -> set[int]:
    return {row for _, first, after in row_ranges_of(group) for row in range(first, after)}


OUTCOMES = st.lists(st.sampled_from([*BUILDERS]), min_size=1, max_size=4)
BATCHES = st.dictionaries(st.integers(0, 60), OUTCOMES, max_size=25)
SHARES = st.integers(1, 3).map(lambda quarters: quarters * FULL_SHARE // 4) | st.just(FULL_SHARE)


@st.composite
def batches(draw: st.DrawFn) -> RowBatch:
    """Generate a batch. Each input row becomes one to four rows; the batch holds some or all."""
    outcomes_by_row = draw(BATCHES)
    if draw(st.booleans()):
        return batch_of(outcomes_by_row)
    return batch_of(outcomes_by_row, {row: draw(SHARES) for row in outcomes_by_row})


@given(batches())
@settings(max_examples=examples(200))
def test_each_row_is_in_one_group_with_all_its_results(batch: RowBatch) -> None:
    groups = list(commit_groups(batch))
    rows = [row for group in groups for row in group.input_ids.tolist()]
    assert sorted(rows) == sorted(batch.input_ids.tolist())
    assert sum(map(outcome_counts, groups), Counter()) == outcome_counts(batch)


@given(batches())
@settings(max_examples=examples(200))
def test_rows_are_whole_or_have_their_share(batch: RowBatch) -> None:
    full = np.full(len(batch.input_ids), FULL_SHARE) if batch.shares is None else batch.shares
    of_rows = dict(zip(batch.input_ids.tolist(), full.tolist(), strict=True))
    groups = list(commit_groups(batch))
    complete = set().union(*map(whole_rows, groups))
    assert complete == {row for row, share in of_rows.items() if share == FULL_SHARE}
    shares = {row: share for group in groups for _, row, share in shares_of(group)}
    assert shares == {row: share for row, share in of_rows.items() if row not in complete}
    assert not [group for group in groups if row_ranges_of(group) and shares_of(group)]


@given(batches())
@settings(max_examples=examples(200))
def test_counts_cover_whole_rows_and_all_results(batch: RowBatch) -> None:
    groups = list(commit_groups(batch))
    counts_of_outcome = Counter(outcome for _, outcome in outcome_counts(batch).elements())
    total = sum(len(whole_rows(group)) for group in groups)
    expected = Counts(
        read=total,
        written=counts_of_outcome["good"],
        failed=counts_of_outcome["failed"],
        filtered=counts_of_outcome["filtered"],
    )
    assert Counts.sum(map(counts_of_group, groups)) == expected


@given(batches())
@settings(max_examples=examples(100))
def test_partly_failed_rows_have_other_groups(batch: RowBatch) -> None:
    """So they can be retried without the other rows."""
    for group in commit_groups(batch):
        mixed = {"failed" in outcome and "," in outcome for outcome in outcomes(group).values()}
        assert shares_of(group) or len(mixed) == 1


@given(BATCHES)
@settings(max_examples=examples(100))
def test_whole_rows_have_at_most_two_groups(outcomes_by_row: dict[int, list[str]]) -> None:
    assert len(list(commit_groups(batch_of(outcomes_by_row)))) <= 2


def test_undivided_rows_are_one_group() -> None:
    batch = batch_of({row: [[*BUILDERS][row % 3]] for row in range(9)})
    assert [*commit_groups(batch)] == [batch]
    assert row_ranges_of(batch) == [(0, 0, 9)]


def test_partial_rows_share_a_group() -> None:
    shares = dict.fromkeys(range(5), FULL_SHARE // 2)
    batch = batch_of({row: ["good"] for row in shares}, shares)
    assert [set(group.input_ids.tolist()) for group in commit_groups(batch)] == [{*shares}]


def test_batch_with_only_an_end_of_file_has_no_group() -> None:
    assert list(commit_groups(end(0, 0))) == []


def test_filtered_row_whose_input_row_is_elsewhere_counts_once() -> None:
    """An input row became several rows, which Ray has put into two blocks."""
    elsewhere = np.array([100, 100], dtype=np.int64)
    alone = RowBatch(filtered=elsewhere)
    mixed = merged([good(0, 0, [0]), good(0, 1, [1]), failed(0, 1)])
    mixed = replace(mixed, input_ids=np.arange(2), filtered=elsewhere)
    for batch in (alone, replace(good(0, 0, [0]), filtered=elsewhere), mixed):
        assert Counts.sum(map(counts_of_group, commit_groups(batch))).filtered == 2
