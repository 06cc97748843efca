"""The plans contain every kind of fault."""

from __future__ import annotations

from chaos.faults import FAULTS
from chaos.plans import plans


def test_faults_of_five_jobs_cover_every_kind() -> None:
    for seed in range(200):
        planned = {injection.fault for plan in plans(5, 2, seed) for injection in plan}
        assert planned == set(FAULTS), seed
