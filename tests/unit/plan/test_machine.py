"""The plan on one machine: no worker groups, and models on the CPU if there are too few GPUs."""

from __future__ import annotations

import math

import pytest

from batchinference.plan import Plan, cpus_needed, plan_for_machine, ray_cpus
from batchinference.plan.stages import WRITE_CPUS, writers
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.minimal import Document, model_step, python_step
from support.documents.parsed import filter_step, spec_of


def plan(*steps: Document, gpus: int = 0, memory: float | None = None, **custom: float) -> Plan:
    return plan_for_machine(spec_of(steps=list(steps)), gpus, custom, memory)


def on_gpu(name: str, gpu: int = 1) -> Document:
    return model_step(name, resources={"gpu": gpu, "cpu": 2})


@pytest.mark.parametrize("gpus", [3, 4])
def test_models_run_on_available_devices(gpus: int) -> None:
    made = plan(on_gpu("one"), on_gpu("two", gpu=2), on_npu("three", 2), gpus=gpus, NPU=2.0)
    assert [stage.resources for stage in made.stages] == [{"GPU": 1}, {"GPU": 2}, {"NPU": 2}]
    assert (made.groups, made.notes) == ((), ())


@pytest.mark.parametrize("gpus", [0, 1])
def test_models_run_on_cpu_with_a_note_if_gpus_are_too_few(gpus: int, messages: Messages) -> None:
    made = plan(on_gpu("embed"), on_gpu("judge"), model_step("score"), gpus=gpus)
    assert [stage.gpus for stage in made.stages] == [0, 0, 0]
    messages.check(made.notes)


def on_npu(name: str, count: int = 1, **others: int) -> Document:
    return model_step(name, resources={"custom": {"NPU": count, **others}})


@pytest.mark.parametrize(
    ("parts", "fits"), [([0.5, 0.5], True), ([0.6, 0.6], False), ([0.3], True)]
)
def test_parts_of_one_device_are_not_on_several(parts: list[float], fits: bool) -> None:
    steps = [model_step(f"s{n}", resources={"gpu": part}) for n, part in enumerate(parts)]
    made = plan(*steps, gpus=1)
    assert [stage.gpus for stage in made.stages] == (parts if fits else [0] * len(parts))


def test_steps_run_on_cpu_without_their_devices(messages: Messages) -> None:
    made = plan(on_npu("one"), on_npu("two", 2), on_gpu("three"), gpus=1, NPU=2.0)
    assert [stage.resources for stage in made.stages] == [{}, {}, {"GPU": 1}]
    messages.check(made.notes)


def test_missing_custom_resource_is_ignored_with_a_note(messages: Messages) -> None:
    made = plan(on_npu("embed", licence=1), NPU=1)
    assert made.stages[0].resources == {"NPU": 1}
    messages.check(made.notes)


def test_accelerator_type_is_ignored_on_a_machine() -> None:
    step = model_step(resources={"gpu": 1, "acceleratorType": "T4"})
    made = plan(step, gpus=1)
    assert (made.stages[0].gpus, made.stages[0].accelerator, made.notes) == (1, None, ())


GI = 2**30
POOLS = [
    model_step("small", resources={"memory": "4Gi"}),
    model_step("large", resources={"memory": "8Gi"}),
]


@pytest.mark.parametrize("memory", [12 * GI, 12 * GI + 1, 16.5 * GI])
def test_memory_is_reserved_if_one_replica_of_each_pool_fits(memory: float) -> None:
    made = plan(*POOLS, model_step("plain"), memory=memory)
    assert [stage.memory for stage in made.stages] == ["4Gi", "8Gi", None]
    assert made.notes == ()


def test_memory_is_ignored_with_a_note_if_it_is_too_small(messages: Messages) -> None:
    made = plan(*POOLS, memory=11.5 * GI)
    assert [stage.memory for stage in made.stages] == [None, None]
    messages.check(made.notes)


@pytest.mark.parametrize("gpus", [0, 1])
def test_machine_pools_start_with_one_replica(gpus: int) -> None:
    step = model_step(replicas={"min": 4, "max": 8}, resources={"gpu": 1})
    (stage,) = plan(step, gpus=gpus).stages
    assert stage.replicas is not None
    assert (stage.replicas.min, stage.replicas.max) == (1, 8)


@pytest.mark.parametrize(("cpu", "task", "ray"), [(0.5, 1, 2), (1.5, 1.5, 2), (4, 4, 4)])
def test_tasks_have_the_cpus_of_the_widest_step(cpu: float, task: float, ray: int) -> None:
    made = plan(filter_step(), model_step("a", resources={"cpu": cpu}), model_step("b"))
    assert made.task_cpus == task
    assert ray_cpus(made, 2) == ray


@pytest.mark.parametrize("machine", [2, 7, 8, 15, 64])
@pytest.mark.parametrize(("cpu", "replicas", "used"), [(0.1, 1, 0), (0.6, 1, 0), (0.7, 3, 2)])
def test_part_of_a_cpu_of_a_pool_takes_no_cpu_from_the_tasks_that_read(
    machine: int, cpu: float, replicas: int, used: int
) -> None:
    step = python_step(resources={"cpu": cpu}, replicas={"max": replicas})
    ray = ray_cpus(plan(step), machine)
    left = ray - cpu * replicas - writers(ray) * WRITE_CPUS
    assert math.floor(left) >= machine - used


PARTS = {"format": "json", "path": "out"}


@pytest.mark.parametrize(
    ("steps", "write", "single"),
    [
        ([], PARTS, True),
        ([filter_step(), python_step("f", "m:function")], PARTS, True),
        ([filter_step(), model_step(), python_step()], PARTS, True),
        ([model_step(resources={"cpu": 2.5})], PARTS, True),
        ([model_step(replicas={"max": 2})], PARTS, False),
        ([python_step(replicas={})], PARTS, False),
        ([model_step(resources={"gpu": 1})], PARTS, True),
        ([model_step(resources={"gpu": 1}, replicas={"max": 2})], PARTS, False),
        ([model_step(resources={"custom": {"NPU": 1}})], PARTS, True),
        ([model_step(resources={"custom": {"licence": 1}})], PARTS, False),
        ([model_step(resources={"memory": "4Gi"})], PARTS, False),
        ([model_step(model=chat())], PARTS, False),
        ([python_step("f", "m:function", resources={"cpu": 3})], PARTS, True),
        ([model_step(), filter_step()], {**PARTS, "rowsPerFile": 10}, True),
        ([model_step(), filter_step()], {"format": "lance", "path": "out"}, True),
    ],
)
def test_jobs_that_need_no_operators_are_one_segment_and_need_no_cpus_for_writers(
    steps: list[Document], write: Document, single: bool
) -> None:
    made = plan_for_machine(spec_of(steps=steps, write=write))
    assert made.single_segment == single
    assert ray_cpus(made, 8) == (8 if single else 9)


@pytest.mark.parametrize(
    ("resources", "single"),
    [({"gpu": 1}, False), ({"custom": {"NPU": 1}}, False), ({"gpu": 2}, True)],
)
def test_model_on_a_device_of_the_machine_has_a_pool(resources: Document, single: bool) -> None:
    assert plan(model_step(resources=resources), gpus=1, NPU=1).single_segment == single


def test_missing_gpu_leaves_the_other_requests_of_a_step() -> None:
    asked = {"gpu": 1, "cpu": 2, "custom": {"licence": 1}}
    made = plan(model_step(resources=asked), licence=1)
    assert (made.stages[0].resources, made.stages[0].cpus) == ({"licence": 1}, 2)
    assert not made.single_segment


@pytest.mark.parametrize(
    ("steps", "cpus"),
    [
        ([], 1.25),
        ([filter_step()], 1.25),
        ([model_step()], 2.25),
        ([model_step(replicas={"min": 3, "max": 3})], 2.25),
        ([model_step("a"), python_step("b", resources={"cpu": 2.5})], 4.75),
        ([python_step("f", "m:function", resources={"cpu": 3})], 3.25),
    ],
)
def test_cpus_needed_for_tasks_and_one_replica_of_each_pool(
    steps: list[Document], cpus: float
) -> None:
    assert cpus_needed(plan(*steps)) == cpus
