"""The search for the number of replicas on a device, from the notes of passes."""

from __future__ import annotations

import json

import pytest

from batchinference.pipeline.errors import BadInput, JobFailure, ModelLoad, OutOfMemory
from batchinference.pipeline.execution.replica_search import ReplicaSearch
from batchinference.pipeline.execution.task_resources import pool_size
from batchinference.plan import Plan, plan_for_cluster, plan_for_machine
from support.documents.minimal import model_step
from support.documents.parsed import spec_of

AUTO = {"resources": {"gpu": 1}, "replicasPerDevice": "auto"}


def plan_of(*names: str, most: int = 4, gpus: int = 2) -> Plan:
    steps = [model_step(name, replicas={"max": most}, **AUTO) for name in names]
    return plan_for_machine(spec_of(steps=steps), gpus=gpus)


def notes(step: str, *rates: float) -> list[tuple[str, str]]:
    """Return the notes of replicas that compute so many rows per second, of two seconds."""
    return [
        (step, json.dumps({"rows": 2 * rate, "seconds": 1.0, "compute_seconds": 1.5,
                           "wait_seconds": 0.4, "blocked_seconds": 0.1}))
        for rate in rates
    ]  # fmt: skip


def parts(search: ReplicaSearch, plan: Plan) -> list[float]:
    return [stage.gpus for stage in search.with_replicas(plan).stages]


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [([10, 5], 1), ([10, 5.4], 1), ([10, 9, 6], 2), ([10, 9, 8, 6], 3), ([10, 10, 10, 10], 4)],
    ids=str,
)
def test_replicas_are_added_while_the_device_gets_faster(rates: list[float], chosen: int) -> None:
    """A rate is that of each replica."""
    plan = plan_of("embed")
    search = ReplicaSearch.of(plan, repeatable=True)
    for number, rate in enumerate(rates, start=1):
        assert search.step == "embed"
        assert parts(search, plan) == [int(10_000 / number) / 10_000]
        search.record(notes("embed", *[rate] * number))
    assert search.step is None
    assert parts(search, plan) == [int(10_000 / chosen) / 10_000]
    ((_, note),) = search.take_notes()
    assert json.loads(note) == {"replicas_per_device": chosen}


def test_pass_without_results_of_the_step_is_repeated() -> None:
    plan = plan_of("embed")
    search = ReplicaSearch.of(plan, repeatable=True)
    search.record([("read", json.dumps({"rows": 9, "seconds": 1.0}))])
    assert (search.step, parts(search, plan)) == ("embed", [1])


def test_steps_are_measured_one_after_another() -> None:
    plan = plan_of("a", "b", most=2)
    search = ReplicaSearch.of(plan, repeatable=True)
    search.record(notes("a", 10))
    assert parts(search, plan) == [0.5, 1]
    search.record(notes("a", 10, 10))
    assert (search.step, parts(search, plan)) == ("b", [0.5, 1])


@pytest.mark.parametrize("failure", [ModelLoad("x"), OutOfMemory("x"), JobFailure("x")], ids=repr)
def test_replicas_that_do_not_fit_are_one_less(failure: JobFailure) -> None:
    plan = plan_of("embed")
    search = ReplicaSearch.of(plan, repeatable=True)
    assert not search.retries_with_fewer(failure)
    search.record(notes("embed", 10))
    assert not search.retries_with_fewer(BadInput("x"))
    assert search.retries_with_fewer(failure)
    assert (search.step, parts(search, plan)) == (None, [1])


def test_source_that_cannot_be_read_again_has_one_replica() -> None:
    plan = plan_of("embed")
    search = ReplicaSearch.of(plan, repeatable=False)
    assert (search.step, parts(search, plan)) == (None, [1])


def test_machine_without_devices_measures_nothing() -> None:
    plan = plan_of("embed", gpus=0)
    assert ReplicaSearch.of(plan, repeatable=True).step is None


@pytest.mark.parametrize(("chosen", "size"), [(1, (1, 2)), (2, (2, 4)), (4, (3, 8))])
def test_pool_has_the_chosen_number_on_each_device(chosen: int, size: tuple[int, int]) -> None:
    step = model_step("embed", replicas={"min": 3, "max": 8}, **AUTO)
    plan = plan_for_cluster(spec_of(steps=[step]))
    search = ReplicaSearch.of(plan, repeatable=True)
    for _ in range(chosen - 1):
        search.record(notes("embed", 10))
    made = search.with_replicas(plan)
    assert pool_size(made.stages[0], made) == size
    assert made.group_of(made.stages[0]) == "embed"
