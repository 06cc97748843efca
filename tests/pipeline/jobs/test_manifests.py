"""Manifests: row ids as ranges, counts in the name, and back again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline import rows
from batchinference.pipeline.manifest import (
    Counts,
    Manifest,
    WrittenFile,
    counts_of_name,
    ends_of,
    ranges_of,
)

FILES = st.integers(0, 3) | st.integers(0, rows.MAX_FILES - 1)
ROWS = st.integers(0, 40) | st.integers(0, (1 << rows.ROW_BITS) - 2)
COUNTS = st.builds(Counts, *[st.integers(0, 10**12)] * 4)
FILE = st.builds(WrittenFile, st.text(max_size=20), st.integers(0, 2**50))
RANGES = st.lists(st.tuples(FILES, ROWS, ROWS), max_size=5)
MANIFESTS = st.builds(
    Manifest,
    attempt=st.integers(1, 9999),
    task=st.integers(0, 99_999_999),
    counts=COUNTS,
    ranges=RANGES,
    shares=st.lists(st.tuples(FILES, ROWS, st.integers(0, rows.WHOLE - 1)), max_size=5),
    ends=st.lists(st.tuples(FILES, ROWS), max_size=5),
    data=st.lists(FILE, max_size=3),
    columns=st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=3),
    errors=st.none() | FILE,
    notes=st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=3),
)


def ids_of(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array([rows.pack(*pair) for pair in pairs], dtype=np.int64)


@given(st.lists(st.tuples(FILES, ROWS), unique=True, max_size=60))
def test_ranges_hold_exactly_the_rows_in_any_order(pairs: list[tuple[int, int]]) -> None:
    ranges = ranges_of(ids_of(pairs))
    held = [(file, row) for file, first, after in ranges for row in range(first, after)]
    assert sorted(held) == sorted(pairs)


@given(st.lists(st.tuples(FILES, ROWS), unique=True, max_size=60))
def test_there_are_no_more_ranges_than_needed(pairs: list[tuple[int, int]]) -> None:
    there = set(pairs)
    beginnings = sorted((file, row) for file, row in there if (file, row - 1) not in there)
    assert [(file, first) for file, first, _ in ranges_of(ids_of(pairs))] == beginnings


def test_the_last_row_of_a_file_and_the_first_of_the_next_are_two_ranges() -> None:
    last = (1 << rows.ROW_BITS) - 1
    ranges = ranges_of(ids_of([(0, last - 1), (1, 0)]))
    assert ranges == [(0, last - 1, last), (1, 0, 1)]


@given(st.dictionaries(FILES, ROWS, max_size=20))
def test_ends_are_files_with_their_number_of_rows(ends: dict[int, int]) -> None:
    assert ends_of(ids_of(list(ends.items()))) == list(ends.items())


@given(MANIFESTS)
@settings(max_examples=200)
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    assert Manifest.parse(manifest.serialized()) == manifest


@given(MANIFESTS)
def test_the_name_tells_the_task_and_its_counts(manifest: Manifest) -> None:
    assert counts_of_name(manifest.name) == (manifest.task, manifest.counts)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "report.json",
        "00000001.1.2.json",
        "00000001.1.2.3",
        "1.1.2.3.json",
        ".00000001.1.2.3.json.tmp",
        "00000001.1.2.3.json.tmp",
        "0000000a.1.2.3.json",
        "00000001.-1.2.3.json",
    ],
)
def test_other_names_are_no_manifests(name: str) -> None:
    assert counts_of_name(name) is None


@given(COUNTS, COUNTS)
def test_counts_add_up(one: Counts, other: Counts) -> None:
    together = one + other
    assert together.read == one.read + other.read
    assert together.written == one.written + other.written
