"""Profiles: the devices of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.profiles import Profile, known_profiles
from support.documents.minimal import Document, document
from support.documents.refusals import refused


def with_profile(profile: Any, name: str = "XPU") -> Document:
    return document(cluster={"profiles": {name: profile}})


def profile(**fields: Any) -> Profile:
    return parse(with_profile(fields)).spec.cluster.profiles["XPU"]


def test_profile_may_be_empty() -> None:
    assert profile() == Profile()


@pytest.mark.parametrize(
    "resource",
    [
        *("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "huawei.com/Ascend910", "a/b"),
        "gpu.intel.com/i915",
    ],
)
def test_profile_resource_is_accepted(resource: str) -> None:
    assert profile(resource=resource).resource == resource


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 64])
def test_profile_name_is_refused(name: str) -> None:
    assert refused(with_profile({}, name)).startswith("spec.cluster.profiles.")


def test_profiles_of_gpu_and_npu_are_built_in() -> None:
    known = known_profiles({})
    assert {name: (one.resource, one.device) for name, one in known.items()} == {
        "GPU": ("nvidia.com/gpu", "cuda"),
        "NPU": ("huawei.com/Ascend910", "npu"),
    }


def test_profile_overrides_fields_of_a_built_in_one() -> None:
    known = known_profiles({"GPU": Profile(resource="amd.com/gpu"), "XPU": Profile(device="xpu")})
    assert (known["GPU"].resource, known["GPU"].device) == ("amd.com/gpu", "cuda")
    assert known["NPU"].resource == "huawei.com/Ascend910"
    assert known["XPU"] == Profile(device="xpu")
