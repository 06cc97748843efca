"""Worker groups: the pods that run the stages of a job."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.plan import CPU_GROUP, Plan, WorkerGroup, plan_for_cluster
from batchinference.plan.groups import DEFAULT_MEMORY, MAX_DEFAULT_CPUS, MAX_GROUP_NAME, groups_of
from batchinference.plan.stages import Stage
from batchinference.spec import SpecError
from batchinference.spec.cluster import Workers
from batchinference.spec.steps import Replicas
from plugins.messages import Messages
from support.documents.minimal import Document, model_step, python_step
from support.documents.parsed import spec_of
from support.tiers import examples

GROUP_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
TAKEN = {"head", "headgroup"}
"""Names that KubeRay and Kueue use for the head."""


def plan(*steps: Document, **workers: Any) -> Plan:
    return plan_for_cluster(spec_of(steps=list(steps), cluster={"workers": workers}))


def cpu_group(*steps: Document, **workers: Any) -> WorkerGroup:
    return plan(*steps, **workers).groups[0]


def own_groups(*steps: Document) -> list[WorkerGroup]:
    return list(plan(*steps).groups[1:])


def on_gpu(name: str, gpu: float = 1, limit: int = 1, **resources: Any) -> Document:
    return model_step(name, replicas={"max": limit}, resources={"gpu": gpu, **resources})


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (on_gpu("embed", gpu=2, limit=4, cpu=6.5, memory="20Gi"),
         WorkerGroup("embed", cpus=6.5, gpus=2, memory="20Gi", min=0, max=4)),
        (model_step("large", resources={"memory": "32Gi"}),
         WorkerGroup("large", cpus=1, gpus=0, memory="32Gi", min=0, max=1)),
        (model_step("embed", replicas={"min": 3, "max": 8}, resources={"gpu": 1}),
         WorkerGroup("embed", cpus=1, gpus=1, memory=DEFAULT_MEMORY, min=0, max=8)),
    ],
)  # fmt: skip
def test_group_of_a_pool_has_its_shape_and_starts_empty(
    step: Document, expected: WorkerGroup
) -> None:
    assert own_groups(step) == [expected]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"resources": {"gpu": 0.25}, "replicas": {"max": 6}}, (4, 1, 4, 2)),
        ({"resources": {"gpu": 0.25}}, (1, 1, 1, 1)),
        ({"resources": {"gpu": 0.3, "cpu": 0.5}, "replicas": {"max": 8}, "replicasPerPod": 4},
         (2, 2, 4, 2)),
        ({"resources": {"gpu": 2}, "replicas": {"max": 9}, "replicasPerPod": 4}, (4, 8, 4, 3)),
        ({"resources": {"gpu": 1}, "replicas": {"max": 8}, "replicasPerDevice": "auto"},
         (4, 1, 4, 2)),
        ({"resources": {"memory": "1Gi"}, "replicas": {"max": 5}, "replicasPerPod": 3},
         (3, 0, 3, 2)),
    ],
)  # fmt: skip
def test_pod_has_the_resources_of_its_replicas(
    fields: Document, expected: tuple[float, int, int, int]
) -> None:
    (group,) = own_groups(model_step("a", **fields))
    assert (group.cpus, group.gpus, group.per_pod, group.max) == expected
    memory = {"1Gi": 1, None: 4}[fields["resources"].get("memory")]
    assert group.memory == f"{memory * group.per_pod}Gi"


def test_group_is_not_shared_by_pools_with_other_parts_of_a_gpu() -> None:
    auto = model_step("b", resources={"gpu": 1}, replicas={"max": 4}, replicasPerDevice="auto")
    half = model_step("c", resources={"gpu": 0.2}, replicas={"max": 4}, replicasPerPod=4)
    made = plan(on_gpu("a", gpu=0.25, limit=4), auto, half)
    assert [group.name for group in made.groups[1:]] == ["a", "b", "c"]


QUEUE, GANG = {"queueName": "gpu"}, {"gangScheduling": True}
FOUR = {"min": 4, "max": 8}
TWO_PODS = {
    "name": "ask",
    "model": {"runtime": "vllm", "source": "m", "inputs": {"prompt": "text"}, "output": "answer",
              "parallelism": {"tensor": 2, "pipeline": 2}},
    "resources": {"gpu": 4},
    "replicas": {"min": 2, "max": 3},
}  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "steps", "expected"),
    [
        ({}, [model_step("a", replicas=FOUR, resources={"gpu": 1})], {"cpu": 1, "a": 0}),
        (QUEUE, [model_step("a", replicas=FOUR, resources={"gpu": 1})], {"cpu": 1, "a": 4}),
        (GANG, [model_step("a", replicas=FOUR, resources={"gpu": 1})], {"cpu": 1, "a": 4}),
        (QUEUE, [model_step("a", replicas=FOUR, resources={"gpu": 0.25})], {"cpu": 1, "a": 1}),
        (QUEUE, [on_gpu("a"), on_gpu("b")], {"cpu": 1, "a": 2}),
        (QUEUE, [on_gpu("a"), on_gpu("b", gpu=2)], {"cpu": 1, "a": 1, "b": 1}),
        (QUEUE, [TWO_PODS], {"cpu": 1, "ask": 4}),
        (QUEUE, [TWO_PODS, on_gpu("b", gpu=2)], {"cpu": 1, "ask": 4, "b": 1}),
        (QUEUE, [model_step("a", replicas=FOUR, resources={"cpu": 4})], {"cpu": 3}),
        ({"workers": {"min": 1, "cpu": 8}, **QUEUE},
         [model_step("a", replicas=FOUR, resources={"cpu": 4})], {"cpu": 1}),
    ],
)  # fmt: skip
def test_gang_starts_the_minimum_of_all_replicas(
    cluster: Document, steps: list[Document], expected: dict[str, int]
) -> None:
    made = plan_for_cluster(spec_of(steps=steps, cluster=cluster))
    assert {group.name: group.min for group in made.groups} == expected


def test_group_is_shared_if_a_pool_requests_the_default_memory() -> None:
    made = plan(on_gpu("a"), on_gpu("b", memory=DEFAULT_MEMORY))
    assert [made.group_of(stage) for stage in made.stages] == ["a", "a"]


LONG = "a-name-of-twenty-let"


@pytest.mark.parametrize(
    ("steps", "groups"),
    [
        ([LONG + "ters"], [LONG]),
        ([LONG[:19] + "-x"], [LONG[:19]]),
        ([LONG + "-1", LONG + "-2"], [LONG, "a-name-of-twent-2"]),
        (["cpu"], ["cpu-2"]),
        (["head", "headgroup"], ["head-2", "headgroup-2"]),
        (
            ["a-name-of-twent-2", LONG + "-1", LONG + "-2"],
            ["a-name-of-twent-2", LONG, "a-name-of-twent-3"],
        ),
    ],
)
def test_group_names_are_truncated_and_unique(steps: list[str], groups: list[str]) -> None:
    made = own_groups(*(on_gpu(name, gpu=number) for number, name in enumerate(steps, start=1)))
    assert [group.name for group in made] == groups


NAMES = st.from_regex(r"(cpu|head|headgroup|ab{0,3}-?c{12,18}(-[2-4])?-?d{0,3}2)", fullmatch=True)
SHAPES = st.tuples(
    st.sampled_from([0.5, 1.0, 4.0]), st.integers(0, 3), st.sampled_from(["", "8Gi"])
)


def stage_of(name: str, shape: tuple[float, int, str], replicas: int) -> Stage:
    cpus, gpus, memory = shape
    return Stage(name, (), cpus, gpus, memory or None, replicas=Replicas(min=1, max=replicas))


STAGES = st.lists(
    st.builds(stage_of, NAMES, SHAPES, st.integers(1, 5)),
    max_size=10,
    unique_by=lambda stage: stage.name,
)


@settings(max_examples=examples(200), deadline=None)
@given(STAGES)
def test_groups_match_the_shapes_of_stages(stages: list[Stage]) -> None:
    groups = groups_of(stages, Workers())
    assert_valid_names([group.name for group in groups])
    shapes = [(group.cpus, group.gpus, group.memory) for group in groups[1:]]
    assert len(set(shapes)) == len(shapes)
    by_name = {group.name: group for group in groups}
    for stage in stages:
        group = by_name[Plan(tuple(stages), tuple(groups)).group_of(stage)]
        if stage.gpus == 0 and stage.memory is None:
            assert group.name == CPU_GROUP
        else:
            memory = stage.memory or DEFAULT_MEMORY
            assert (group.cpus, group.gpus, group.memory) == (stage.cpus, stage.gpus, memory)
    own = [stage for stage in stages if stage.gpus or stage.memory]
    replicas = sum(stage.replicas.max for stage in own if stage.replicas)
    assert sum(group.max for group in groups[1:]) == replicas


def assert_valid_names(names: list[str]) -> None:
    """Assert that KubeRay accepts the names and that they are unique."""
    assert len(set(names)) == len(names)
    assert names[0] == CPU_GROUP
    for name in names:
        assert len(name) <= MAX_GROUP_NAME
        assert GROUP_NAME.fullmatch(name)
        assert name not in TAKEN


@pytest.mark.parametrize(
    ("steps", "cpus", "limit"),
    [
        ([], 2, 2),
        ([model_step()], 3, 2),
        ([model_step(replicas={"max": 4})], 3, 3),
        ([model_step(replicas={"min": 4, "max": 4})], 6, 2),
        ([model_step(resources={"cpu": 4}, replicas={"min": 4, "max": 4})], MAX_DEFAULT_CPUS, 4),
        ([model_step(resources={"cpu": 12})], 12, 3),
        ([model_step(resources={"cpu": 0.5})], 2, 2),
        ([on_gpu("embed", limit=8)], 2, 2),
    ],
)
def test_cpu_group_defaults(steps: list[Document], cpus: float, limit: int) -> None:
    expected = WorkerGroup(CPU_GROUP, cpus=cpus, gpus=0, memory=DEFAULT_MEMORY, min=1, max=limit)
    assert cpu_group(*steps) == expected


def test_cpu_group_has_fewer_workers_if_they_are_wider() -> None:
    step = model_step(replicas={"min": 1, "max": 8})
    assert cpu_group(step, cpu=2).max == 6
    assert cpu_group(step, cpu=16).max == 2


def test_cpu_group_minimum_is_one_by_default_and_raises_the_maximum() -> None:
    assert cpu_group().min == 1
    assert cpu_group(min=0).min == 0
    assert cpu_group(min=5).max == 5


def test_cpu_group_with_min_above_max_is_refused() -> None:
    with pytest.raises(SpecError) as refusal:
        groups_of([], Workers(max=2).model_copy(update={"min": 3}))
    assert str(refusal.value).startswith("spec.cluster.workers: min (3) is above max (2). ")


@pytest.mark.parametrize(
    ("step", "cpu"),
    [
        (model_step("embed", resources={"cpu": 4}), 2),
        (python_step("clean", "m:function", resources={"cpu": 2.5}), 2),
        (on_gpu("embed", cpu=8), 0.5),
    ],
    ids=["model", "function", "reading and writing"],
)
def test_cpu_group_with_too_few_cpus_is_refused(
    step: Document, cpu: float, messages: Messages
) -> None:
    with messages.raises(SpecError):
        plan(step, cpu=cpu)
