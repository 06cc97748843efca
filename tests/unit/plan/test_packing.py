"""The number of pods that are needed for a set of tasks and actors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.plan.groups import pods_needed
from support.operator.packing import fewest_boxes, fits
from support.tiers import examples

SIZE = 4.0
FEW = st.lists(st.integers(1, 80).map(lambda n: n / 20), max_size=7)
ORDERS = FEW.flatmap(lambda demands: st.tuples(st.just(demands), st.permutations(demands)))


@pytest.mark.parametrize(
    ("demands", "size", "pods"),
    [
        ([], 4, 0),
        ([4], 4, 1),
        ([1, 1, 1, 1], 4, 1),
        ([1, 1, 1, 1, 0.25], 4, 2),
        ([3, 3], 4, 2),
        ([1, 3, 1, 3], 4, 2),
        ([0.1] * 30, 3, 1),  # the sum of the floats has a rounding error
    ],
)
def test_pods_needed_for_demands(demands: list[float], size: float, pods: int) -> None:
    assert pods_needed(demands, size) == pods


@settings(max_examples=examples(300), deadline=None)
@given(ORDERS)
def test_pods_hold_all_demands_and_are_few_in_any_order(
    orders: tuple[list[float], list[float]],
) -> None:
    demands, other = orders
    best, pods = fewest_boxes(demands, SIZE), pods_needed(demands, SIZE)
    assert fits(demands, SIZE, pods)
    assert pods_needed(other, SIZE) == pods
    # the bound that Dosa proved for first-fit decreasing
    assert best <= pods <= 11 / 9 * best + 6 / 9
