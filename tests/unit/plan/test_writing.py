"""Write tasks have their own CPUs, in addition to the CPUs of a machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.plan.stages import MIN_WRITERS, WRITE_CPUS, cpus_with_writers, writers


@pytest.mark.parametrize(
    ("machine", "ray"), [(1, 2), (2, 3), (4, 5), (8, 9), (9, 11), (16, 19), (64, 73)]
)
def test_writers_add_logical_cpus_to_a_machine(machine: int, ray: int) -> None:
    assert cpus_with_writers(machine) == ray


@given(st.integers(1, 1000))
def test_writers_leave_all_cpus_of_a_machine_to_other_tasks(machine: int) -> None:
    def left(cpus: int) -> float:
        return cpus - writers(cpus) * WRITE_CPUS

    assert left(cpus_with_writers(machine)) >= machine > left(cpus_with_writers(machine) - 1)


@given(st.floats(0, 1000))
def test_writers_are_at_least_the_minimum_and_at_most_the_cpus(cpus: float) -> None:
    assert MIN_WRITERS <= writers(cpus) <= max(MIN_WRITERS, cpus)
