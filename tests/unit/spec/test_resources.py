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
    result = parse(with_resources(**resources)).spec.steps[0].resources
    assert result is not None
    return result


def test_accelerator_names_equal_those_of_ray() -> None:
    """Runs only Ray's module of accelerators, because importing Ray takes a second."""
    ray = find_spec("ray")
    assert ray
    assert ray.origin
    module = runpy.run_path(str(Path(ray.origin).parent / "util/accelerators/accelerators.py"))
    rays = {name: value for name, value in module.items() if name.isupper()}
    assert len(set(RAY_NAMES)) == len(RAY_NAMES)
    assert set(RAY_NAMES) == set(rays.values())


def test_accelerator_type_may_be_a_list() -> None:
    resources = resources_of(gpu=1, acceleratorType=["H100", "A100"])
    assert resources.accelerator_types == ["H100", "A100"]
    assert resources_of(gpu=1, acceleratorType="T4").accelerator_types == ["T4"]


@pytest.mark.parametrize(("gpu", "expected"), [(1, 1), ("500m", 0.5), (0.25, 0.25), ("2", 2)])
def test_gpus_are_a_whole_number_or_a_part(gpu: Any, expected: float) -> None:
    assert resources_of(gpu=gpu).gpu == expected
