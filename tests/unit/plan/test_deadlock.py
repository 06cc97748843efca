"""A job is refused if its replicas hold all CPUs, because read and write tasks would never run."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batchinference.plan import WorkerGroup
from batchinference.plan.groups import groups_of
from batchinference.plan.stages import TASK_CPUS, WRITE_CPUS, Stage
from batchinference.spec import SpecError
from batchinference.spec.cluster import Workers
from batchinference.spec.steps import Replicas
from plugins.messages import Messages
from support.operator.packing import fits
from support.tiers import examples

CPUS = st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0])
REPLICAS = st.tuples(st.integers(1, 3), st.integers(0, 3)).map(
    lambda pair: Replicas(min=pair[0], max=sum(pair))
)
POOLS = st.builds(Stage, st.just("pool"), st.just(()), CPUS, replicas=REPLICAS)
FUNCTIONS = st.builds(Stage, st.just("function"), st.just(()), CPUS)
STAGES = st.lists(st.one_of(POOLS, FUNCTIONS), max_size=4)
WORKERS = st.builds(Workers, cpu=st.sampled_from([None, 1.0, 1.5, 2.0, 4.0, 8.0]))


def at_the_same_time(stages: list[Stage]) -> list[float]:
    """Return the CPUs of everything that must run at the same time: the minimum replicas of each
    pool, the task that needs the most CPUs, and one write task."""
    replicas = [stage.cpus for stage in stages if stage.replicas for _ in range(stage.replicas.min)]
    tasks = [stage.cpus for stage in stages if not stage.replicas]
    return [*replicas, max([TASK_CPUS, *tasks]), WRITE_CPUS]


def cpu_group(stages: list[Stage], workers: Workers) -> WorkerGroup:
    return groups_of(stages, workers)[0]


def with_max(workers: Workers, limit: int) -> Workers:
    return workers.model_copy(update={"max": limit})


def asked_for(error: SpecError) -> int:
    """Return the number of workers that a refusal suggests."""
    (problem,) = error.problems
    assert problem.path == "spec.cluster.workers.max"
    match = re.search(r"Raise cluster\.workers\.max to (\d+) or lower replicas\.min", str(problem))
    assert match
    return int(match[1])


@settings(max_examples=examples(400), deadline=None)
@given(STAGES, WORKERS, st.integers(1, 4))
def test_deadlock_refusal_suggests_enough_workers(
    stages: list[Stage], workers: Workers, limit: int
) -> None:
    assume(workers.cpu is None or all(stage.cpus <= workers.cpu for stage in stages))
    try:
        group = cpu_group(stages, with_max(workers, limit))
    except SpecError as error:
        enough = asked_for(error)
        assert enough > limit
        group = cpu_group(stages, with_max(workers, enough))
    assert fits(at_the_same_time(stages), group.cpus, group.max)


@settings(max_examples=examples(400), deadline=None)
@given(STAGES, WORKERS, st.integers(1, 4))
def test_deadlock_check_needs_at_most_one_extra_worker(
    stages: list[Stage], workers: Workers, limit: int
) -> None:
    """The optimal placement is hard to find, so the check may require one extra worker."""
    assume(workers.cpu is None or all(stage.cpus <= workers.cpu for stage in stages))
    group = cpu_group(stages, workers)
    if fits(at_the_same_time(stages), group.cpus, limit):
        cpu_group(stages, with_max(workers, limit + 1))


@settings(max_examples=examples(200), deadline=None)
@given(STAGES)
def test_deadlock_is_impossible_with_default_workers(stages: list[Stage]) -> None:
    group = cpu_group(stages, Workers())
    assert fits(at_the_same_time(stages), group.cpus, group.max)


def test_deadlock_refusal_explains_which_cpus_are_held(messages: Messages) -> None:
    pool = Stage("embed", (), 1.0, replicas=Replicas(min=4, max=4))
    with messages.raises(SpecError):
        cpu_group([pool], Workers(cpu=2.0, max=2))


@pytest.mark.parametrize(
    ("pool", "cpu"),
    [
        (Stage("embed", (), 1.0, replicas=Replicas(min=1, max=100)), 4.0),
        (Stage("embed", (), 8.0, gpus=1, replicas=Replicas(min=9, max=9)), 2.0),
    ],
)
def test_deadlock_check_ignores_replicas_that_hold_no_cpus(pool: Stage, cpu: float) -> None:
    assert cpu_group([pool], Workers(cpu=cpu, max=1)).max == 1
