"""Resources of a replica: memory, accelerator types and custom resources."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.resources import RAY_NAMES, Resources
from support.documents.minimal import Document, document, model_step


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


@pytest.mark.parametrize(("gpu", "expected"), [(1, 1), ("500m", 0.5), (0.25, 0.25), ("2", 2)])
def test_gpus_are_a_whole_number_or_a_part(gpu: Any, expected: float) -> None:
    assert resources_of(gpu=gpu).gpu == expected


@pytest.mark.parametrize("name", ["NPU", "neuron_cores", "cv-gpu", "TPU-v4-16-head", "a", "A" * 63])
def test_custom_resource_is_accepted(name: str) -> None:
    assert resources_of(custom={name: 3}).custom == {name: 3}


def test_memory_request_of_1mi_is_accepted() -> None:
    for memory in ("1Mi", "64Mi", "1024Ki"):
        assert parse(document(cluster={"requests": {"memory": memory}})), memory
