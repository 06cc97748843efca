"""Whether the commits hold each row of the input exactly once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batchinference.pipeline.coverage import SHOWN, check_coverage, rows_covered
from batchinference.pipeline.failures import Incomplete
from batchinference.pipeline.manifest import Counts, Manifest
from batchinference.pipeline.rows import WHOLE

Range = tuple[int, int, int]
End = tuple[int, int]


def manifest(ranges: Iterable[Range], ends: Iterable[End] = (), task: int = 0) -> Manifest:
    ranges = list(ranges)
    written = sum(after - first for _, first, after in ranges)
    return Manifest(1, task, Counts(written, written), ranges, [], list(ends), [], [], None, [])


@st.composite
def partitions(draw: st.DrawFn) -> tuple[list[int], list[Range]]:
    """The rows of some files, and the same rows cut into ranges."""
    sizes = draw(st.lists(st.integers(0, 20), min_size=1, max_size=5))
    pieces = []
    for file, size in enumerate(sizes):
        cuts = draw(st.sets(st.integers(1, size - 1))) if size > 1 else set()
        edges = [0, *sorted(cuts), size] if size else []
        pieces += [(file, *pair) for pair in itertools.pairwise(edges)]
    return sizes, draw(st.permutations(pieces))


def dealt(sizes: list[int], pieces: list[Range], tasks: int) -> list[Manifest]:
    """Ranges and ends of files, dealt out to tasks."""
    ends = list(enumerate(sizes))
    return [manifest(pieces[n::tasks], ends[n::tasks], n) for n in range(tasks)]


@given(partitions(), st.integers(1, 4))
def test_any_partition_of_the_input_covers_it(
    partition: tuple[list[int], list[Range]], tasks: int
) -> None:
    sizes, pieces = partition
    check_coverage(dealt(sizes, pieces, tasks), len(sizes))


@given(partitions(), st.data())
def test_a_range_that_is_missing_is_named(
    partition: tuple[list[int], list[Range]], data: st.DataObject
) -> None:
    sizes, pieces = partition
    assume(pieces)
    lost = data.draw(st.sampled_from(pieces))
    left = [piece for piece in pieces if piece != lost]
    with pytest.raises(Incomplete) as raised:
        check_coverage(dealt(sizes, left, 2), len(sizes))
    file, first, after = lost
    at_the_end = f"file {file} has {sizes[file]} rows and {first} were written"
    within = f"rows {first} to {after - 1} of file {file} are missing"
    assert (at_the_end if after == sizes[file] else within) in raised.value.message


@given(partitions(), st.data())
def test_rows_that_are_there_twice_are_named(
    partition: tuple[list[int], list[Range]], data: st.DataObject
) -> None:
    sizes, pieces = partition
    assume(pieces)
    file, first, after = data.draw(st.sampled_from(pieces))
    start = data.draw(st.integers(first, after - 1))
    stop = data.draw(st.integers(start + 1, after))
    twice = [*pieces, (file, start, stop)]
    with pytest.raises(Incomplete) as raised:
        check_coverage(dealt(sizes, twice, 2), len(sizes))
    assert f"rows {start} to {stop - 1} of file {file} are there twice" in raised.value.message


@given(partitions(), st.data())
def test_a_file_whose_end_nobody_has_seen_is_named(
    partition: tuple[list[int], list[Range]], data: st.DataObject
) -> None:
    sizes, pieces = partition
    file = data.draw(st.integers(0, len(sizes) - 1))
    ends = [end for end in enumerate(sizes) if end[0] != file]
    with pytest.raises(Incomplete, match=f"the end of file {file} was not written"):
        check_coverage([manifest(pieces, ends)], len(sizes))


def test_files_of_one_row_each_need_not_tell_where_they_end() -> None:
    check_coverage([manifest([(0, 0, 1), (1, 0, 1)], [])], files=2, rows_each=1)
    assert rows_covered([], files=2, rows_each=1) == 2
    with pytest.raises(Incomplete, match="file 1 has 1 rows and 0 were written"):
        check_coverage([manifest([(0, 0, 1)], [])], files=2, rows_each=1)


@pytest.mark.parametrize(
    ("ranges", "rows", "words"),
    [
        ([(0, 1, 5)], 5, "rows 0 to 0 of file 0 are missing"),
        ([(0, 0, 3), (0, 4, 5)], 5, "rows 3 to 3 of file 0 are missing"),
        ([(0, 0, 3)], 5, "file 0 has 5 rows and 3 were written"),
        ([(0, 0, 6)], 5, "file 0 has 5 rows and 6 were written"),
        ([(0, 0, 3), (0, 2, 5)], 5, "rows 2 to 2 of file 0 are there twice"),
        ([(0, 0, 5), (0, 1, 3)], 5, "rows 1 to 2 of file 0 are there twice"),
        ([], 5, "file 0 has 5 rows and 0 were written"),
    ],
    ids=["beginning", "gap", "rest", "too many", "overlap", "within another", "nothing"],
)
def test_faults_in_words(ranges: list[Range], rows: int, words: str) -> None:
    with pytest.raises(Incomplete, match=re.escape(words)):
        check_coverage([manifest(ranges, [(0, rows)])], files=1)


def test_an_input_of_which_nothing_was_written_is_not_covered() -> None:
    with pytest.raises(Incomplete, match="the end of file 0"):
        check_coverage([], files=1)


def test_the_first_faults_are_named_and_the_others_counted() -> None:
    with pytest.raises(Incomplete) as raised:
        check_coverage([], files=SHOWN + 4)
    assert raised.value.message.count("was not written") == SHOWN
    assert raised.value.message.endswith("and 4 more")


def parts(*shares: Range, task: int = 0) -> Manifest:
    """A task that holds parts of rows: file, row and how many quarters of it."""
    quarter = WHOLE // 4
    given = [(file, row, quarters * quarter) for file, row, quarters in shares]
    return Manifest(1, task, Counts(), [], given, [], [], [], None, [])


def test_parts_of_a_row_make_it_whole_wherever_they_are() -> None:
    whole = manifest([(0, 0, 1), (0, 2, 3)], [(0, 3)])
    check_coverage([whole, parts((0, 1, 1), task=1), parts((0, 1, 3), task=2)], files=1)
    assert rows_covered([whole], files=1) == 3


@pytest.mark.parametrize(
    ("quarters", "words"), [(3, "rows 0 to 0 of file 0 are missing|0 were"), (5, "there twice")]
)
def test_a_part_too_few_or_too_many_is_noticed(quarters: int, words: str) -> None:
    ends = manifest([], [(0, 1)])
    with pytest.raises(Incomplete, match=words):
        check_coverage([ends, parts((0, 0, quarters))], files=1)


def test_a_row_that_is_there_as_a_whole_and_in_part_is_noticed() -> None:
    whole = manifest([(0, 0, 2)], [(0, 2)])
    with pytest.raises(Incomplete, match="row 1 of file 0 is there as a whole and in part"):
        check_coverage([whole, parts((0, 1, 2), task=1)], files=1)
