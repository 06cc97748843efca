"""Resources of a replica: memory, accelerator types and custom resources."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.accelerators import RAY_NAMES, wrong_case_of
from batchinference.spec.resources import Resources
from plugins.messages import Messages
from support.documents.minimal import Document, document, model_step, python_step
from support.documents.refusals import refused, short

FIELD = "spec.steps[0].resources"


def with_resources(**resources: Any) -> Document:
    return document(steps=[model_step(resources=resources)])


def resources_of(**resources: Any) -> Resources:
    found = parse(with_resources(**resources)).spec.steps[0].resources
    assert found is not None
    return found


def test_accelerator_names_equal_those_of_ray() -> None:
    """Runs only Ray's module of accelerators, because importing Ray takes a second."""
    ray = find_spec("ray")
    assert ray
    assert ray.origin
    module = runpy.run_path(str(Path(ray.origin).parent / "util/accelerators/accelerators.py"))
    rays = {name: value for name, value in module.items() if name.isupper()}
    assert len(set(RAY_NAMES)) == len(RAY_NAMES)
    assert set(RAY_NAMES) == set(rays.values())


@pytest.mark.parametrize("name", ["T4", "A100-80G", "Ascend910B", "Ascend910B2", "own.kind_7"])
@pytest.mark.parametrize("devices", [{"gpu": 1}, {"custom": {"NPU": 2}}], ids=str)
def test_accelerator_type_is_accepted(name: str, devices: Document) -> None:
    assert resources_of(acceleratorType=name, **devices).accelerator_type == name


def test_accelerator_type_may_be_a_list() -> None:
    found = resources_of(gpu=1, acceleratorType=["H100", "A100"])
    assert found.accelerator_types == ["H100", "A100"]
    assert resources_of(gpu=1, acceleratorType="T4").accelerator_types == ["T4"]


@pytest.mark.parametrize("types", [[], ["T4", "T4"], ["T4", 4], 4, ["T4", "t4"]], ids=str)
def test_wrong_list_of_types_is_refused(types: Any, messages: Messages) -> None:
    messages.check(refused(with_resources(gpu=1, acceleratorType=types)))


@pytest.mark.parametrize(("gpu", "expected"), [(1, 1), ("500m", 0.5), (0.25, 0.25), ("2", 2)])
def test_gpus_are_a_whole_number_or_a_part(gpu: Any, expected: float) -> None:
    assert resources_of(gpu=gpu).gpu == expected


@pytest.mark.parametrize("gpu", [1.5, "1500m", -1, 65, 0.12345, "a"])
def test_other_numbers_of_gpus_are_refused(gpu: Any, messages: Messages) -> None:
    messages.check(refused(with_resources(gpu=gpu)))


@pytest.mark.parametrize(
    "fields",
    [
        {"replicasPerPod": 2, "replicas": {"max": 2}},
        {"replicasPerPod": 3, "replicas": {"max": 2}, "resources": {"gpu": 1}},
    ],
    ids=short,
)
def test_replicas_that_cannot_share_are_refused(fields: Document, messages: Messages) -> None:
    messages.check(refused(document(steps=[model_step(**fields)])))


@pytest.mark.parametrize(("written", "known"), [("t4", "T4"), ("ASCEND910b", "Ascend910B")])
def test_accelerator_type_in_wrong_case_is_refused(
    written: str, known: str, messages: Messages
) -> None:
    assert wrong_case_of(known) is None
    messages.check(refused(with_resources(gpu=1, acceleratorType=written)))


def test_accelerator_type_requires_devices(messages: Messages) -> None:
    messages.check(refused(with_resources(cpu=2, acceleratorType="T4")))


@pytest.mark.parametrize("name", ["", "-T4", "T4 ", "T4:1", "é", "T" * 64])
def test_accelerator_type_is_refused(name: str) -> None:
    assert refused(with_resources(gpu=1, acceleratorType=name)).startswith(
        f"{FIELD}.acceleratorType[0]: "
    )


@pytest.mark.parametrize("name", ["NPU", "neuron_cores", "cv-gpu", "TPU-v4-16-head", "a", "A" * 63])
def test_custom_resource_is_accepted(name: str) -> None:
    assert resources_of(custom={name: 3}).custom == {name: 3}


@pytest.mark.parametrize(
    "custom",
    [
        {"NPU": 0},
        {"NPU": 0.5},
        {"NPU": 10001},
        ["NPU"],
        {"a b": 1},
        {"NPU\n": 1},
        {"N" * 64: 1},
        {str(n): 1 for n in range(9)},
        {"GPU": 1},
        {"memory": 1},
    ],
    ids=short,
)
def test_custom_resource_is_refused(custom: Any, messages: Messages) -> None:
    messages.check(refused(with_resources(custom=custom)))


def test_custom_resource_of_a_function_is_refused(messages: Messages) -> None:
    step = python_step("own", "module:function", resources={"custom": {"NPU": 1}})
    messages.check(refused(document(steps=[step])))


@pytest.mark.parametrize("memory", ["0", "1", "1k", "64Ki", "500M", "511.9Mi"])
def test_memory_below_512mi_is_refused(memory: str, messages: Messages) -> None:
    messages.check(refused(with_resources(memory=memory)))
    cluster = {"workers": {"memory": memory}}
    messages.check(refused(document(cluster=cluster)))


def test_memory_request_below_1mi_is_refused(messages: Messages) -> None:
    for memory in ("0", "1", "64", "1k", "1023Ki"):
        messages.check(refused(document(cluster={"requests": {"memory": memory}})))
    for memory in ("1Mi", "64Mi", "1024Ki"):
        assert parse(document(cluster={"requests": {"memory": memory}})), memory
