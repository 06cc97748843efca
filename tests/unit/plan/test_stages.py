"""The steps and the resources of each stage."""

from __future__ import annotations

import pytest

from batchinference.plan.stages import TASK_CPUS, Stage, stages_of
from batchinference.spec.models.base import MODEL_BATCH_SIZE
from batchinference.spec.steps import Replicas
from support.documents.http_models import chat
from support.documents.minimal import Document, model_step, python_step
from support.documents.parsed import drop_step, filter_step, label_step, select_step, steps_of

FUNCTION = "module:function"


def stages(*steps: Document) -> list[Stage]:
    return stages_of(steps_of(*steps))


def names(*steps: Document) -> list[list[str]]:
    """Return the names of the steps of each stage."""
    return [[step.name for step in stage.steps] for stage in stages(*steps)]


WIDE = [python_step(name, FUNCTION, resources={"cpu": 2}) for name in ("f", "g")]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], []),
        (
            [label_step(), filter_step("a"), filter_step("b"), select_step("text")],
            [["label", "a", "b", "select"]],
        ),
        ([filter_step("a"), python_step("f", FUNCTION), filter_step("b")], [["a", "f", "b"]]),
        ([filter_step("a"), WIDE[0], filter_step("b")], [["a"], ["f"], ["b"]]),
        (WIDE, [["f", "g"]]),
    ],
)
def test_task_stage_joins_steps_with_equal_cpus(
    steps: list[Document], expected: list[list[str]]
) -> None:
    assert names(*steps) == expected
    assert [stage.name for stage in stages(*steps)] == [joined[0] for joined in expected]


SLIM = drop_step("text", name="slim")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([filter_step("a"), model_step("pool"), filter_step("b")], [["a"], ["pool"], ["b"]]),
        ([filter_step("a"), python_step("pool"), filter_step("b")], [["a"], ["pool"], ["b"]]),
        ([model_step("one"), model_step("two")], [["one"], ["two"]]),
        ([model_step("embed"), filter_step("own")], [["embed"], ["own"]]),
        ([model_step("embed"), label_step(name="own")], [["embed"], ["own"]]),
        ([model_step("embed"), python_step("own", FUNCTION)], [["embed"], ["own"]]),
        ([model_step("embed"), SLIM, filter_step("b", "true_one")], [["embed", "slim"], ["b"]]),
        (
            [model_step("embed"), select_step("embedding", name="slim"), filter_step("b", "true")],
            [["embed", "slim"], ["b"]],
        ),
        ([model_step("embed"), filter_step("b", "score > 1"), SLIM], [["embed", "slim"], ["b"]]),
    ],
)
def test_pool_stage_is_joined_only_by_dropped_columns(
    steps: list[Document], expected: list[list[str]]
) -> None:
    assert names(*steps) == expected


def test_unread_column_is_dropped_before_the_first_pool() -> None:
    first, second = stages(model_step("embed"), drop_step("path", name="slim"))
    assert (first.name, first.replicas) == ("slim", None)
    assert [step.name for step in second.steps] == ["embed"]


@pytest.mark.parametrize(
    ("step", "size"),
    [
        (model_step(), MODEL_BATCH_SIZE),
        (model_step(model=chat()), 16),
        (model_step(batchSize=7), 7),
        (python_step(), None),
        (python_step(batchSize=7), 7),
        (python_step(callable_=FUNCTION, batchSize=7), None),
        (filter_step(), None),
    ],
)
def test_batch_size_of_a_stage(step: Document, size: int | None) -> None:
    assert stages(step)[0].batch_size == size


def test_stage_resources_have_defaults() -> None:
    task, wide, pool = stages(filter_step(), WIDE[0], model_step())
    assert wide.cpus == 2
    assert (task.cpus, task.gpus, task.memory, task.replicas) == (TASK_CPUS, 0, None, None)
    assert (pool.cpus, pool.gpus, pool.memory) == (1, 0, None)
    assert pool.replicas == Replicas(min=1, max=1)
