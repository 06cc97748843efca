"""The plans contain every kind of fault, and the jobs every kind of job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batchinference.plan import plan_for_cluster
from batchinference.spec import parse
from chaos.faults import FAULTS
from chaos.inputs import FORMATS
from chaos.jobs import POOLS, SHAPES, WRITES, Job, jobs
from chaos.plans import plans


def test_faults_of_five_jobs_cover_every_kind() -> None:
    for seed in range(200):
        planned = {injection.fault for plan in plans(5, 2, seed) for injection in plan}
        assert planned == set(FAULTS), seed


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        (lambda job: job.reads, list(FORMATS)),
        (lambda job: job.pools, list(POOLS)),
        (lambda job: job.shape.name, [shape.name for shape in SHAPES]),
        (lambda job: job.writes, WRITES),
    ],
    ids=["reads", "pools", "shape", "writes"],
)
def test_five_jobs_cover_every_kind(kind: Callable[[Job], object], kinds: list[object]) -> None:
    for seed in range(200):
        assert {kind(job) for job in jobs(5, seed)} == {*kinds}, seed


def test_jobs_depend_on_the_seed_only() -> None:
    summaries = [[job.summary for job in jobs(30, seed)] for seed in (1, 1, 2)]
    assert summaries[0] == summaries[1] != summaries[2]


def test_jobs_of_a_kind_have_its_pools() -> None:
    pools = {"no pool": 0, "one pool": 1, "two pools": 2, "vLLM": 2}
    for job in jobs(30, seed=1):
        plan = plan_for_cluster(parse(job.document()).spec)
        assert sum(stage.needs_pool for stage in plan.stages) == pools[job.pools], job.summary
