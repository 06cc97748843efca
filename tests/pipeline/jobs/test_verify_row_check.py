"""Which rows manifest entries hold, compared with a count row by row."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from batchinference.pipeline.commit.manifest import ManifestEntry, Range, Share
from batchinference.pipeline.row_batch import FULL_SHARE
from batchinference.pipeline.verify.row_check import AccountedRows, Sizes
from batchinference.spec.progress import Counts

FILES, ROWS = 3, 6
RANGES = st.tuples(st.integers(0, FILES), st.integers(0, ROWS), st.integers(1, ROWS)).map(
    lambda each: (each[0], each[1], each[1] + each[2])
)
SHARES = st.tuples(
    st.integers(0, FILES), st.integers(0, ROWS), st.sampled_from([FULL_SHARE // 2, FULL_SHARE])
)
ENTRIES = st.lists(
    st.tuples(st.lists(RANGES, max_size=3), st.lists(SHARES, max_size=3)), max_size=4
)
SIZES = st.dictionaries(st.integers(0, FILES - 1), st.integers(0, ROWS))
Row = tuple[int, int]


def entry(row_ranges: list[Range], shares: list[Share] | None = None) -> ManifestEntry:
    return ManifestEntry(Counts(), row_ranges, shares or [], [], [], None)


def times(entries: list[ManifestEntry]) -> Counter[Row]:
    """Return how often each row is held."""
    counts = Counter(
        (file, row)
        for p in entries
        for file, first, after in p.row_ranges
        for row in range(first, after)
    )
    parts: Counter[Row] = Counter()
    for p in entries:
        for file, row, share in p.shares:
            parts[file, row] += share
    for row, share in parts.items():
        counts[row] += (share >= FULL_SHARE) + (
            share > FULL_SHARE or (share < FULL_SHARE and counts[row] > 0)
        )
    return +counts


def rows_of(row_ranges: list[Range]) -> Counter[Row]:
    return Counter((file, row) for file, first, after in row_ranges for row in range(first, after))


@given(given_=ENTRIES, ends=SIZES)
def test_duplicate_missing_and_extra_rows_are_listed(
    given_: list[tuple[list[Range], list[Share]]], ends: dict[int, int]
) -> None:
    entries = [entry(*each) for each in given_]
    holdings, often = AccountedRows.of(entries), times(entries)
    sizes = Sizes(FILES, ends)
    assert holdings.rows == len(often)
    assert sum(rows_of(holdings.repeated).values()) == sum(often.values()) - len(often)
    assert set(rows_of(holdings.repeated)) == {row for row, count in often.items() if count > 1}
    beyond = {(file, row) for file, row in often if file >= FILES or row >= ends.get(file, 99)}
    assert rows_of(holdings.beyond(sizes)) == Counter(beyond)
    closed = [(file, first, after) for file, gaps in holdings.missing(sizes).items()
              for first, after in gaps if after is not None and file in ends]  # fmt: skip
    missing = {(file, row) for file, end in ends.items() for row in range(end)} - often.keys()
    assert set(rows_of(closed)) >= missing
    assert {row for row in rows_of(closed) if row[1] < ends[row[0]]} == missing


@given(kept=st.sets(st.integers(0, FILES)))
def test_file_that_is_one_row_needs_no_end(kept: set[int]) -> None:
    holdings = AccountedRows.of([entry([(file, 0, 1) for file in kept])])
    sizes = Sizes(FILES, {}, rows_each=1)
    assert sizes.total == FILES
    assert set(holdings.missing(sizes)) == set(range(FILES)) - kept
    assert holdings.beyond(sizes) == [(FILES, 0, 1)] * (FILES in kept)


def test_file_whose_rows_are_not_known_may_have_more() -> None:
    holdings = AccountedRows.of([entry([(0, 0, 5)])])
    assert holdings.missing(Sizes(1, {})) == {0: [(5, None)]}
    assert Sizes(1, {}).total is None
    assert holdings.beyond(Sizes(1, {})) == []
