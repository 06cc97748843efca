"""The plans contain every kind of fault."""

from __future__ import annotations

from chaos.faults import FAULTS
from chaos.plans import plans


def test_five_jobs_get_every_kind_of_fault_for_any_seed() -> None:
    for seed in range(200):
        planned = {injection.fault for plan in plans(5, seed) for injection in plan}
        assert planned == set(FAULTS), seed
