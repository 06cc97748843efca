"""Top-k cosine similarity, compared with a brute-force search."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from batchinference.pipeline.search.search import (
    NO_ROW,
    TopK,
    is_usable,
    lengths_of,
)
from support.tiers import examples

NUMBERS = st.floats(-100, 100, width=32).map(lambda x: 0.0 if abs(x) < 1e-3 else x)
TOLERANCE = 1e-5


def matrix(rows: st.SearchStrategy[int], width: int) -> st.SearchStrategy[np.ndarray]:
    return rows.flatmap(lambda n: nps.arrays(np.float32, (n, width), elements=NUMBERS))


@st.composite
def searches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, list[int]]:
    """Draw rows, queries, k, and the boundaries of blocks."""
    width = draw(st.integers(1, 5))
    rows = draw(matrix(st.integers(0, 30), width))
    queries = draw(matrix(st.integers(1, 4), width).filter(lambda q: (abs(q).sum(1) > 0).all()))
    cuts = draw(st.lists(st.integers(0, len(rows)), max_size=4).map(sorted))
    return rows, queries, draw(st.integers(1, 8)), [0, *cuts, len(rows)]


def brute_force(rows: np.ndarray, query: np.ndarray) -> dict[int, float]:
    """Return the cosine similarity of each nonzero row by row number."""
    similarities = {}
    for number, row in enumerate(rows.astype(np.float64)):
        length = math.sqrt(row @ row) * math.sqrt(float(query.astype(np.float64) @ query))
        if length > 0:
            similarities[number] = float(row @ query) / length
    return similarities


def search(rows: np.ndarray, queries: np.ndarray, k: int, cuts: list[int]) -> TopK:
    best = TopK(queries, k)
    for first, last in pairwise(cuts):
        best.add(rows[first:last], np.arange(first, last))
    return best


@given(searches())
@settings(max_examples=examples(300), deadline=None)
def test_search_over_blocks_finds_the_k_most_similar_rows(
    case: tuple[np.ndarray, np.ndarray, int, list[int]],
) -> None:
    rows, queries, k, _ = case
    best = search(*case)
    for number, query in enumerate(queries):
        expected = brute_force(rows, query)
        found = best.rows[number][best.rows[number] != NO_ROW].tolist()
        similarities = best.similarities[number][: len(found)]
        assert len(found) == len(set(found)) == min(k, len(expected))
        assert similarities.tolist() == sorted(similarities, reverse=True)
        assert similarities == pytest.approx([expected[row] for row in found], abs=TOLERANCE)
        left = [expected[row] for row in expected if row not in found]
        assert not left or max(left) <= similarities[-1] + TOLERANCE
    assert best.skipped == sum(not row.any() for row in rows)


@given(searches(), st.floats(1e-18, 1e18))
@settings(max_examples=examples(100), deadline=None)
def test_result_does_not_depend_on_vector_length(
    case: tuple[np.ndarray, np.ndarray, int, list[int]], factor: float
) -> None:
    rows, queries, k, cuts = case
    scaled = search((rows * np.float64(factor)).astype(np.float32), queries, k, cuts)
    assert scaled.similarities == pytest.approx(search(*case).similarities, abs=TOLERANCE)


def test_earlier_of_equal_rows_win() -> None:
    rows = np.tile(np.array([[3.0, 4.0]], np.float32), (20, 1))
    best = search(rows, np.array([[1.0, 0.0]], np.float32), 3, [0, 7, 20])
    assert best.rows.tolist() == [[0, 1, 2]]


def test_similarity_is_between_minus_1_and_1() -> None:
    rows = np.array([[1e-20, 2e-20], [-5.0, -10.0], [3e20, 6e20], [2.0, -1.0]], np.float32)
    best = search(rows, rows[2:3], 4, [0, 4])
    assert best.similarities[0] == pytest.approx([1, 1, 0, -1], abs=1e-6)
    assert best.similarities.max() <= 1
    assert best.similarities.min() >= -1


def test_floats_of_every_width_are_compared() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        rows = np.array([[1, 0], [1, 1], [0, 1]], dtype)
        assert search(rows, rows[1:2], 2, [0, 3]).rows.tolist() == [[1, 0]], dtype


def test_zero_rows_are_skipped_and_a_zero_query_is_rejected() -> None:
    for bad in (0.0, math.nan, math.inf):
        rows = np.array([[bad, bad], [1, 1], [bad, 0], [0, 0]], np.float64)
        best = search(rows, np.ones((1, 2)), 4, [0, 2, 4])
        assert best.rows.tolist() == [[1, NO_ROW, NO_ROW, NO_ROW]], bad
        assert best.skipped == 3, bad
    with pytest.raises(ValueError, match="no direction"):
        TopK(np.array([[1.0, 0.0], [0.0, 0.0]]), 1)


def test_lengths_do_not_overflow() -> None:
    lengths = lengths_of(np.array([[3e30, 4e30], [np.nan, 1]], np.float32))
    assert lengths[0] == pytest.approx(5e30)
    assert is_usable(lengths).tolist() == [True, False]
