"""Quantities of CPUs and memory, as Kubernetes writes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.spec.base import MEMORY
from batchinference.spec.quantities import cpu_quantity, cpus_of, memory_bytes, smaller_memory
from plugins.messages import Messages

QUANTITIES = st.from_regex(re.compile(MEMORY, re.ASCII), fullmatch=True).filter(
    lambda text: len(text) <= 16
)


def cpu_number(quantity: str) -> float:
    return int(quantity[:-1]) / 1000 if quantity.endswith("m") else float(int(quantity))


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        *(("0", 0), ("1000", 1000), ("1k", 1000), ("1M", 10**6), ("1G", 10**9), ("1T", 10**12)),
        *(("1Ki", 1024), ("512Mi", 512 * 2**20), ("8Gi", 8 * 2**30), ("1.5Gi", 1536 * 2**20)),
        ("2Ti", 2 * 2**40),
    ],
)
def test_memory_in_bytes(quantity: str, expected: int) -> None:
    assert memory_bytes(quantity) == expected


@pytest.mark.parametrize("quantity", ["", "Gi", "1Zi", "1 Gi", "-1Gi", "1gi", "many"])
def test_memory_quantity_is_refused(quantity: str, messages: Messages) -> None:
    with messages.raises(ValueError):
        memory_bytes(quantity)


@given(QUANTITIES)
def test_memory_quantity_of_a_valid_job_is_parsed(quantity: str) -> None:
    assert memory_bytes(quantity) >= 0


@given(QUANTITIES, QUANTITIES)
def test_memory_request_is_capped_at_the_limit(wanted: str, limit: str) -> None:
    chosen = smaller_memory(wanted, limit)
    assert memory_bytes(chosen) == min(memory_bytes(wanted), memory_bytes(limit))
    assert chosen in (wanted, limit)


@pytest.mark.parametrize(
    ("quantity", "cpus"),
    [
        *(("2", 2), (2, 2), (0.5, 0.5), ("500m", 0.5), ("1k", 1000), ("100u", 1e-4), ("5n", 5e-9)),
        *(("1e3", 1000), ("1E3", 1000), ("12e-1", 1.2), ("1.5Ki", 1536), ("1Ei", 2**60)),
        *(("1E", 1e18), ("+2", 2), ("1M", 1e6), ("2Pi", 2**51)),
    ],
)
def test_cpus_of_any_quantity_of_kubernetes(quantity: str | float, cpus: float) -> None:
    assert cpus_of(quantity) == pytest.approx(cpus)


@pytest.mark.parametrize("quantity", ["", "m", "1 m", "1x", "1..2", "many"])
def test_cpu_quantity_is_refused(quantity: str) -> None:
    with pytest.raises(ValueError, match=r"not a quantity|could not convert"):
        cpus_of(quantity)


@pytest.mark.parametrize(
    ("cpus", "quantity"),
    [(1.0, "1"), (16.0, "16"), (0.5, "500m"), (2.25, "2250m"), (0.1, "100m"), (0.0001, "1m")],
)
def test_cpu_quantity(cpus: float, quantity: str) -> None:
    assert cpu_quantity(cpus) == quantity


@given(st.floats(0, 1024, exclude_min=True))
def test_cpu_quantity_is_rounded_to_millicores_above_zero(cpus: float) -> None:
    number = cpu_number(cpu_quantity(cpus))
    assert number > 0
    assert abs(number - cpus) <= 0.001
