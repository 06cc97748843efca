"""Which steps run together, and what each stage takes."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.plan.pruning import drop_early
from batchinference.plan.stages import TASK_CPUS, Stage, stages_of
from batchinference.spec.models.base import MODEL_BATCH_SIZE
from batchinference.spec.steps import Replicas
from support.documents.http_models import chat
from support.documents.minimal import Document, model_step, python_step
from support.documents.parsed import (
    drop_step,
    filter_step,
    label_step,
    nearest_step,
    select_step,
    steps_of,
)
from support.documents.variations import full_document

FUNCTION = "module:function"


def stages(*steps: Document) -> list[Stage]:
    return stages_of(steps_of(*steps))


def names(*steps: Document) -> list[list[str]]:
    """The names of the steps of each stage."""
    return [[step.name for step in stage.steps] for stage in stages(*steps)]


def test_a_job_without_steps_has_no_stage_between_reading_and_writing() -> None:
    assert stages() == []


def test_steps_that_only_touch_columns_run_in_one_task() -> None:
    together = [label_step(), filter_step("first"), filter_step("second"), select_step("text")]
    assert names(*together) == [["label", "first", "second", "select"]]


def test_a_function_runs_with_its_neighbours() -> None:
    assert names(filter_step("a"), python_step("f", FUNCTION), filter_step("b")) == [
        ["a", "f", "b"]
    ]


def test_a_function_that_asks_for_other_cpus_runs_by_itself() -> None:
    wide = python_step("f", FUNCTION, resources={"cpu": 2})
    assert names(filter_step("a"), wide, filter_step("b")) == [["a"], ["f"], ["b"]]
    assert [stage.cpus for stage in stages(filter_step("a"), wide)] == [1, 2]


def test_search_shares_the_group_cpu() -> None:
    assert names(model_step(), nearest_step(), filter_step("b")) == [["embed"], ["near", "b"]]
    wide = {**nearest_step(), "resources": {"cpu": 2}}
    assert names(wide, filter_step("b")) == [["near"], ["b"]]
    assert stages(wide)[0].replicas is None


def test_functions_that_ask_for_the_same_cpus_run_together() -> None:
    wide = [python_step(name, FUNCTION, resources={"cpu": 2}) for name in ("f", "g")]
    assert names(*wide) == [["f", "g"]]


@pytest.mark.parametrize("pool", [model_step("pool"), python_step("pool")], ids=["model", "class"])
def test_a_model_or_class_gets_a_pool_of_its_own(pool: Document) -> None:
    assert names(filter_step("a"), pool, filter_step("b")) == [["a"], ["pool"], ["b"]]


def test_two_models_run_in_two_pools() -> None:
    assert names(model_step("one"), model_step("two")) == [["one"], ["two"]]


@pytest.mark.parametrize(
    "slim", [drop_step("text", name="slim"), select_step("embedding", name="slim")]
)
def test_dropping_columns_joins_the_pool_before_it(slim: Document) -> None:
    assert names(model_step("embed"), slim, filter_step("b", "true_one")) == [
        ["embed", "slim"],
        ["b"],
    ]


def test_no_other_step_joins_a_pool() -> None:
    for step in (filter_step("own"), label_step(name="own"), python_step("own", FUNCTION)):
        assert names(model_step("embed"), step) == [["embed"], ["own"]]


def test_a_column_is_dropped_in_the_pool_that_reads_it_last() -> None:
    steps = [model_step("embed"), filter_step("some", "score > 1"), drop_step("text", name="slim")]
    assert names(*steps) == [["embed", "slim"], ["some"]]


def test_a_column_that_nobody_reads_is_dropped_before_the_first_pool() -> None:
    first, second = stages(model_step("embed"), drop_step("path", name="slim"))
    assert (first.name, first.replicas) == ("slim", None)
    assert [step.name for step in second.steps] == ["embed"]


def test_a_stage_is_named_after_its_first_step() -> None:
    assert [stage.name for stage in stages(label_step(), filter_step(), model_step())] == [
        "label",
        "embed",
    ]


def test_the_stages_hold_all_steps_in_their_order() -> None:
    steps = steps_of(*full_document()["spec"]["steps"])
    joined = [step for stage in stages_of(steps) for step in stage.steps]
    assert joined == drop_early(steps)


@pytest.mark.parametrize(
    ("step", "size"),
    [
        pytest.param(model_step(), MODEL_BATCH_SIZE, id="model"),
        pytest.param(model_step(model=chat(concurrency=4)), 32, id="endpoint"),
        pytest.param(model_step(model=chat(concurrency=40)), 320, id="busy endpoint"),
        pytest.param(model_step(batchSize=7), 7, id="model that says"),
        pytest.param(python_step(), None, id="class: a whole block"),
        pytest.param(python_step(batchSize=7), 7, id="class that says"),
        pytest.param(python_step(callable_=FUNCTION, batchSize=7), None, id="function: a block"),
        pytest.param(filter_step(), None, id="filter: a whole block"),
    ],
)
def test_rows_of_a_batch(step: Document, size: int | None) -> None:
    assert stages(step)[0].batch_size == size


def test_default_resources_of_a_stage() -> None:
    task, pool = stages(filter_step(), model_step())
    assert (task.cpus, task.gpus, task.memory, task.replicas) == (TASK_CPUS, 0, None, None)
    assert (pool.cpus, pool.gpus, pool.memory) == (1, 0, None)
    assert pool.replicas == Replicas(min=1, max=1)


@pytest.mark.parametrize("make", [model_step, python_step], ids=["model", "class"])
def test_a_pool_takes_what_its_step_says(make: Any) -> None:
    asked = {"cpu": 2.5, "gpu": 2, "memory": "5Gi"}
    (stage,) = stages(make(resources=asked, replicas={"min": 2, "max": 8}))
    assert (stage.cpus, stage.gpus, stage.memory) == (2.5, 2, "5Gi")
    assert stage.replicas == Replicas(min=2, max=8)
