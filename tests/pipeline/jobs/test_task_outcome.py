"""Groups of rows of a write task that count together: each row is in exactly one group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import concat
from batchinference.pipeline.commit.manifest_entry import RowCounts, total
from batchinference.pipeline.commit.task_outcome import MAX_PARTIAL_ROWS, TaskOutcome
from batchinference.pipeline.execution.step_results import divide

FATES = ("good", "failed", "skipped")


@dataclass(frozen=True)
class Task:
    """The parts of rows that one write task holds: row, share and fate of each part."""

    held: list[tuple[int, int, str]]

    def sums(self) -> dict[int, int]:
        """Return the share of each row that the task holds."""
        sums: Counter[int] = Counter()
        for row, share, _ in self.held:
            sums[row] += share
        return dict(sums)

    def done(self) -> TaskOutcome:
        tables = [_child(*child) for child in self.held]
        good, rest = row_ids.split(concat(tables)) if tables else (_child(0, 1, "good")[:0], None)
        return TaskOutcome.of(good, rest)


def _child(row: int, share: int, fate: str) -> pa.Table:
    ids = np.array([row], dtype=np.int64)
    shares = None if share == row_ids.FULL_SHARE else np.array([share])
    match fate:
        case "failed":
            return row_ids.failed_row(row, "own", ValueError("no"), share=share)
        case "skipped":
            return row_ids.skipped_rows(ids, shares)
    return row_ids.with_own_columns(pa.table({"value": [row]}), pa.array(ids), shares)


@st.composite
def tasks(draw: st.DrawFn, parted: bool = True) -> Task:
    """Generate a task. Each input row became one to four rows, of which it holds some or all."""
    held = []
    for row in draw(st.lists(st.integers(0, 60), unique=True, max_size=25)):
        count = draw(st.sampled_from([1, 1, 1, 2, 4]))
        shares = divide(np.array([row_ids.FULL_SHARE]), np.zeros(count, np.int64), 1)
        assert shares is not None
        here = draw(st.integers(1, count)) if parted else count
        fates = draw(st.lists(st.sampled_from(FATES), min_size=here, max_size=here))
        held += [(row, int(share), fate) for share, fate in zip(shares, fates, strict=False)]
    return Task(held)


def ids_of(done: TaskOutcome) -> set[int]:
    tables = (done.good, done.failed, done.skipped)
    return {int(id_) for table in tables for id_ in row_ids.ids_of(table)}


def whole_rows(done: TaskOutcome) -> set[int]:
    return {row for _, first, after in done.row_ranges for row in range(first, after)}


@given(tasks())
@settings(max_examples=200, deadline=None)
def test_each_row_is_in_one_group_with_all_its_results(task: Task) -> None:
    groups = list(task.done().groups())
    found: Counter[int] = Counter()
    for group in groups:
        found.update(ids_of(group))
    assert found == dict.fromkeys(task.sums(), 1)
    for fate in FATES:
        there = sum(getattr(group, fate).num_rows for group in groups)
        assert there == sum(1 for _, _, one in task.held if one == fate)


@given(tasks())
@settings(max_examples=200, deadline=None)
def test_rows_are_whole_or_have_their_share(task: Task) -> None:
    sums = task.sums()
    whole = {row for row, share in sums.items() if share == row_ids.FULL_SHARE}
    groups = list(task.done().groups())
    assert set().union(*map(whole_rows, groups)) == whole
    shares = {row: share for group in groups for _, row, share in group.shares}
    assert shares == {row: share for row, share in sums.items() if row not in whole}
    assert not [group for group in groups if group.row_ranges and group.shares]


@given(tasks())
@settings(max_examples=200, deadline=None)
def test_counts_cover_whole_rows_and_all_results(task: Task) -> None:
    fates = Counter(fate for _, _, fate in task.held)
    whole = sum(1 for share in task.sums().values() if share == row_ids.FULL_SHARE)
    expected = RowCounts(whole, *(fates[fate] for fate in FATES))
    done = task.done()
    assert done.counts == expected
    assert total(group.counts for group in done.groups()) == expected


@given(tasks())
@settings(max_examples=100, deadline=None)
def test_partly_failed_rows_have_other_groups(task: Task) -> None:
    """So they can be retried without the other rows."""
    for group in task.done().groups():
        tables = (group.good, group.skipped, group.failed)
        good, skipped, failed = (set(row_ids.ids_of(table).tolist()) for table in tables)
        mixed = (good | skipped) & failed
        assert not mixed or group.shares or mixed == ids_of(group)


@given(tasks(parted=False))
@settings(max_examples=100, deadline=None)
def test_whole_rows_have_at_most_two_groups(task: Task) -> None:
    assert len(list(task.done().groups())) <= 2


def test_rows_that_never_were_divided_are_one_group() -> None:
    done = Task([(row, row_ids.FULL_SHARE, FATES[row % 3]) for row in range(9)]).done()
    assert list(done.groups()) == [done]
    assert done.row_ranges == [(0, 0, 9)]


def test_few_partial_rows_have_own_groups_many_share_one() -> None:
    """Each group is a file, so many small groups would be many small files."""
    half = row_ids.FULL_SHARE // 2
    few = Task([(row, half, "good") for row in range(MAX_PARTIAL_ROWS)]).done()
    assert [ids_of(group) for group in few.groups()] == [{row} for row in range(MAX_PARTIAL_ROWS)]
    many = Task([(row, half, "good") for row in range(MAX_PARTIAL_ROWS + 1)]).done()
    assert [len(ids_of(group)) for group in many.groups()] == [MAX_PARTIAL_ROWS + 1]


def test_task_with_only_an_end_of_file_has_no_group() -> None:
    _, rest = row_ids.split(row_ids.end_of_file(0, 0))
    good = row_ids.with_ids(pa.table({"value": pa.array([], pa.int64())}), 0, 0)
    assert list(TaskOutcome.of(good, rest).groups()) == []
