"""Plans for vLLM: pods for tensor and pipeline parallelism."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.plan import Plan, plan_for_cluster, plan_for_machine
from batchinference.spec import BatchInferenceSpec
from plugins.messages import Messages
from support.documents.parsed import drop_step, spec_of
from support.documents.vllm_models import vllm_step


def vllm_spec(
    gpu: int = 1, limit: int = 1, resources: dict[str, Any] | None = None, **fields: Any
) -> BatchInferenceSpec:
    step = vllm_step(gpu=gpu, **fields)
    step |= {"replicas": {"min": 1, "max": limit}}
    step["resources"] |= resources or {}
    return spec_of(steps=[step, drop_step("text")])


def shapes(plan: Plan) -> list[tuple[str, float, int, str, int]]:
    """Return the name, CPUs, GPUs, memory and maximum of each group except `cpu`."""
    return [
        (group.name, group.cpus, group.gpus, group.memory, group.max) for group in plan.groups[1:]
    ]


@pytest.mark.parametrize(
    ("parallelism", "gpus", "pod_gpus", "pods"),
    [
        ({}, 1, 1, 3),
        ({"tensor": 4}, 4, 4, 3),
        ({"pipeline": 2}, 2, 1, 6),
        ({"tensor": 8, "pipeline": 2}, 16, 8, 6),
    ],
)
def test_vllm_pod_has_the_gpus_of_a_tensor_parallel_group(
    parallelism: dict[str, int], gpus: int, pod_gpus: int, pods: int
) -> None:
    large = {"cpu": 8, "memory": "64Gi"}
    plan = plan_for_cluster(vllm_spec(gpus, 3, large, parallelism=parallelism))
    assert shapes(plan) == [("ask", 8, pod_gpus, "64Gi", pods)]
    (stage,) = plan.stages
    assert (stage.gpus, stage.batch_size) == (gpus, 32)
    assert plan.group_of(stage) == "ask"


def test_vllm_pods_are_shared_by_replicas_with_as_many_pods() -> None:
    """Kueue places the pods of a replica together, so it must know their number."""
    steps = [
        vllm_step("first", gpu=4, parallelism={"tensor": 2, "pipeline": 2}),
        vllm_step("second", gpu=2, output="other", parallelism={"tensor": 2}),
        vllm_step("third", gpu=2, output="more", parallelism={"tensor": 2}),
    ]
    plan = plan_for_cluster(spec_of(steps=steps))
    assert shapes(plan) == [("first", 1, 2, "4Gi", 2), ("second", 1, 2, "4Gi", 2)]


def test_vllm_uses_the_gpus_of_a_machine() -> None:
    plan = plan_for_machine(vllm_spec(4, 3, parallelism={"tensor": 2, "pipeline": 2}), gpus=4)
    (stage,) = plan.stages
    assert (stage.gpus, plan.groups, plan.notes) == (4, (), ())


def test_vllm_on_a_machine_with_too_few_gpus_gets_a_note(messages: Messages) -> None:
    plan = plan_for_machine(vllm_spec(4, parallelism={"tensor": 4}), gpus=1)
    assert plan.stages[0].gpus == 0
    messages.check(plan.notes)
