"""Which committed entries count, and which rows are missing: each row counts exactly once.

The rules are rules of sets. The tests compute with sets, the code with row ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.commit.manifest import Manifest, ManifestEntry, Range, Share, ranges_of
from batchinference.pipeline.commit.row_coverage import (
    SHOWN,
    RowSet,
    format_missing_rows,
    resolve_overlaps,
)
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.row_batch import FULL_SHARE, MAX_FILES, ROW_BITS, MissingRows, pack_id
from plugins.messages import Messages
from support.outputs.builders import OURS, entry
from support.tiers import examples

Row = tuple[int, int]
"""The number of a file, and the number of a row in it."""
QUARTER = FULL_SHARE // 4
MOST_FILES, MOST_ROWS = 3, 8
ROW = st.tuples(st.integers(0, MOST_FILES - 1), st.integers(0, MOST_ROWS - 1))
SETS = st.sets(ROW, max_size=8)
PARTS = st.dictionaries(ROW, st.integers(1, 3), max_size=3)


def row_ranges(of: Iterable[Row]) -> list[Range]:
    return ranges_of(np.array([pack_id(*row) for row in of], dtype=np.int64))


def holding(rows: Iterable[Row] = (), parts: dict[Row, int] | None = None) -> ManifestEntry:
    """Return an entry with these whole rows, and with this many quarters of other rows."""
    shares = [(*row, quarters * QUARTER) for row, quarters in (parts or {}).items()]
    return entry(row_ranges(rows), shares)


@st.composite
def entries(draw: st.DrawFn) -> list[ManifestEntry]:
    """Generate what tasks may have committed: whole rows or parts of rows, with many duplicates."""
    full = st.builds(holding, SETS)
    return draw(st.lists(full | st.builds(holding, st.just(()), PARTS), max_size=7))


def whole_of(one: ManifestEntry) -> list[Row]:
    return [(file, row) for file, first, after in one.row_ranges for row in range(first, after)]


def held_by(chosen: Iterable[ManifestEntry]) -> dict[Row, Fraction]:
    """Return how much of each row these entries hold, as a fraction."""
    counts: Counter[Row] = Counter()
    for one in chosen:
        counts.update(dict.fromkeys(whole_of(one), FULL_SHARE))
        counts.update({(file, row): share for file, row, share in one.shares})
    return {row: Fraction(share, FULL_SHARE) for row, share in counts.items()}


@given(entries())
@settings(max_examples=examples(400))
def test_each_row_counts_once_or_not_at_all(given_: list[ManifestEntry]) -> None:
    assert set(held_by(resolve_overlaps(given_)).values()) <= {Fraction(1)}


@given(entries())
def test_only_committed_entries_count_and_only_once(given_: list[ManifestEntry]) -> None:
    numbers = [
        next(n for n, one in enumerate(given_) if one is chosen)
        for chosen in resolve_overlaps(given_)
    ]
    assert len(numbers) == len(set(numbers))


@given(entries())
def test_whole_rows_count_unless_an_earlier_piece_contains_one(given_: list[ManifestEntry]) -> None:
    counting = resolve_overlaps(given_)
    rows: set[Row] = set()
    for one in given_:
        if one.shares:
            continue
        assert any(one is chosen for chosen in counting) == rows.isdisjoint(whole_of(one))
        rows |= set() if rows & set(whole_of(one)) else set(whole_of(one))


@given(entries(), entries())
def test_later_commits_do_not_replace_whole_rows(
    before: list[ManifestEntry], after: list[ManifestEntry]
) -> None:
    """Their data files have been read by then."""
    counting = [one for one in resolve_overlaps(before) if not one.shares]
    later = resolve_overlaps([*resolve_overlaps(before), *after])
    assert all(any(one is other for other in later) for one in counting)


def test_parts_count_when_the_row_is_complete() -> None:
    one, other = holding(parts={(0, 1): 1}), holding(parts={(0, 1): 3})
    assert resolve_overlaps([one]) == resolve_overlaps([other]) == []
    assert resolve_overlaps([one, other]) == [one, other]


def test_duplicate_part_excludes_the_row() -> None:
    one, other = holding(parts={(0, 1): 1}), holding(parts={(0, 1): 3})
    assert resolve_overlaps([one, other, one]) == []


def test_uncounted_parts_exclude_their_whole_piece() -> None:
    """Row 2 is complete, but an entry counts as a whole or not at all."""
    both = holding(parts={(0, 1): 1, (0, 2): 1})
    rest = holding(parts={(0, 2): 3})
    assert resolve_overlaps([both, rest]) == []
    missing = holding(parts={(0, 1): 3})
    assert resolve_overlaps([both, rest, missing]) == [both, rest, missing]


def test_thousands_of_overlapping_entries_are_resolved() -> None:
    """A node that was lost and came back leaves them: each one twice, and one across each edge."""
    cut = [entry([(0, 10 * n, 10 * n + 10)]) for n in range(2000)]
    across = [entry([(0, 10 * n + 5, 10 * n + 15)]) for n in range(2000)]
    assert resolve_overlaps([*cut, *cut, *across]) == cut


def brute_force_gaps(
    rows: set[Row], ends: dict[int, int], files: int
) -> dict[int, set[int | None]]:
    """Return the missing rows by file. None represents the remaining rows if the end is unknown."""
    result: dict[int, set[int | None]] = {}
    for file in range(files):
        there = {row for number, row in rows if number == file}
        end = ends.get(file, max(there, default=-1) + 1)
        missing: set[int | None] = set(range(end)) - there
        if file not in ends:
            missing.add(None)
        if missing:
            result[file] = missing
    return result


def expanded(gaps: MissingRows) -> dict[int, set[int | None]]:
    """Return each missing row by file. None represents a range whose end is unknown."""
    result: dict[int, set[int | None]] = {}
    for file, each in gaps.items():
        numbers: list[int | None] = []
        for first, after in each:
            numbers += [None] if after is None else range(first, after)
        assert len(numbers) == len(set(numbers)), "a row is missing once"
        result[file] = set(numbers)
    return result


@st.composite
def held_rows(draw: st.DrawFn) -> tuple[list[ManifestEntry], dict[int, int]]:
    """Generate entries of rows that count, and the ends of some of the files."""
    there = sorted(draw(SETS))
    cut = draw(st.integers(1, 4))
    parted = {row for row in there if draw(st.booleans())}
    holdings = [holding(row for row in there[n::cut] if row not in parted) for n in range(cut)]
    parts = [holding(parts=dict.fromkeys(parted, quarters)) for quarters in (1, 3)]
    ends = {}
    for file in draw(st.sets(st.integers(0, MOST_FILES - 1))):
        last = max((row for number, row in there if number == file), default=-1)
        ends[file] = last + 1 + draw(st.integers(0, 3))
    return draw(st.permutations([*holdings, *parts])), ends


@given(held_rows())
@settings(max_examples=examples(400))
def test_gaps_are_the_rows_that_no_piece_contains(
    given_: tuple[list[ManifestEntry], dict[int, int]],
) -> None:
    chosen, ends = given_
    gaps = RowSet.of(chosen).missing(MOST_FILES, ends)
    assert expanded(gaps) == brute_force_gaps(set(held_by(chosen)), ends, MOST_FILES)
    for each in gaps.values():
        assert each == sorted(each), "in the order of the file"
        starts, stops = [first for first, _ in each][1:], [after for _, after in each][:-1]
        assert all(
            stop is not None and start > stop for start, stop in zip(starts, stops, strict=True)
        )


@given(held_rows())
def test_open_gap_begins_after_the_last_held_row(
    given_: tuple[list[ManifestEntry], dict[int, int]],
) -> None:
    chosen, ends = given_
    kept = held_by(chosen)
    for file, each in RowSet.of(chosen).missing(MOST_FILES, ends).items():
        first, after = each[-1]
        if after is None:
            assert first == max((row for number, row in kept if number == file), default=-1) + 1


@given(st.sets(st.integers(0, 9)), st.integers(1, 3))
def test_files_with_a_fixed_row_count_need_no_ends(there: set[int], each: int) -> None:
    kept = RowSet.of([holding((file, row) for file in there for row in range(each))])
    assert kept.missing(10, {}, each) == {n: [(0, each)] for n in range(10) if n not in there}


@given(SETS, st.lists(ROW))
def test_holds_returns_which_rows_are_in_the_set(there: set[Row], rows: list[Row]) -> None:
    kept, ids = RowSet.of([holding(there)]), [pack_id(*row) for row in rows]
    inside = [row in there for row in rows]
    assert kept.contains(np.array(ids, dtype=np.int64)).tolist() == inside


def manifest(chosen: list[ManifestEntry], ends: Iterable[tuple[int, int]] = ()) -> Manifest:
    return Manifest(0, 0, chosen, list(ends), [])


@st.composite
def commits(draw: st.DrawFn) -> tuple[list[int], list[Manifest]]:
    """Generate the row counts of some files, and two manifests with some of these rows."""
    sizes = draw(st.lists(st.integers(0, MOST_ROWS), min_size=1, max_size=MOST_FILES))
    there = [(file, row) for file, size in enumerate(sizes) for row in range(size)]
    row = st.sampled_from(there) if there else st.nothing()
    full = st.builds(holding, st.sets(row))
    parted = st.builds(holding, st.just(()), st.dictionaries(row, st.integers(1, 3)))
    result = draw(st.lists(full | parted, max_size=6))
    ends = draw(st.lists(st.sampled_from(list(enumerate(sizes))), max_size=3))
    return sizes, [manifest(result[n::2], ends[n::2]) for n in range(2)]


def done_again(gaps: MissingRows, sizes: list[int]) -> Manifest:
    """Return the manifest of a task that processes exactly the missing rows."""
    missing = [
        (file, first, sizes[file] if after is None else after)
        for file, each in gaps.items()
        for first, after in each
    ]
    seen = [(file, sizes[file]) for file, each in gaps.items() if each[-1][1] is None]
    return manifest([entry([edges]) for edges in missing if edges[1] < edges[2]], seen)


@given(commits())
@settings(max_examples=examples(400))
def test_processing_the_missing_rows_completes_the_output(
    given_: tuple[list[int], list[Manifest]],
) -> None:
    sizes, made = given_
    begun = Snapshot(OURS, "").with_commits(made)
    gaps = begun.missing_rows(len(sizes), None)
    done = begun.with_commits([done_again(gaps, sizes)])
    assert done.missing_rows(len(sizes), None) == {}
    everything = {(file, row) for file, size in enumerate(sizes) for row in range(size)}
    assert held_by(done.entries) == dict.fromkeys(everything, Fraction(1))
    assert done.rows(len(sizes), None) == done.counts.read == len(everything)


@pytest.mark.parametrize(
    ("kept", "end"),
    [
        ([(1, 5)], 5),
        ([(0, 3), (4, 5)], 5),
        ([(0, 3)], 5),
        ([(0, 3)], None),
        ([], 5),
        ([], None),
        ([(0, 1), (2, 3)], 4),
    ],
)
def test_missing_rows_are_formatted(
    kept: list[tuple[int, int]], end: int | None, messages: Messages
) -> None:
    ends = {} if end is None else {0: end}
    missing = RowSet.of([entry((0, *edges) for edges in kept)]).missing(1, ends)
    messages.check(format_missing_rows(missing))


def test_first_gaps_are_listed_and_the_rest_counted() -> None:
    text = format_missing_rows(RowSet.of([]).missing(SHOWN + 4, {}))
    assert text.count("rows of file") == SHOWN
    assert text.endswith(" and 4 more")


def test_last_possible_row_can_have_shares() -> None:
    last: Share = (MAX_FILES - 1, (1 << ROW_BITS) - 2, QUARTER)
    one = entry(shares=[last])
    rest = entry(shares=[(*last[:2], 3 * QUARTER)])
    assert resolve_overlaps([one, rest]) == [one, rest]
    assert RowSet.of([one, rest]).contains(np.array([pack_id(*last[:2])])).all()


@pytest.mark.parametrize("seen", [(), (20,)], ids=["not seen", "seen"])
def test_end_before_rows_that_are_held_is_no_end(seen: tuple[int, ...]) -> None:
    """Memory ran out in a read after that of other rows: the rest of the file is a failed row."""
    kept = manifest([entry([(0, 0, 8), (0, 12, 16)])], [(0, end) for end in seen])
    short = manifest([entry([(0, 8, 11)])], [(0, 11)])
    for order in ([kept, short], [short, kept]):
        known = Snapshot(OURS, "").with_commits(order[:1]).with_commits(order[1:])
        assert known.missing_rows(1, None) == {0: [(11, 12), (16, *(seen or [None]))]}
