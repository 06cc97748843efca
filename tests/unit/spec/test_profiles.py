"""Profiles: the devices of a cluster."""

from __future__ import annotations

from batchinference.spec.profiles import Profile, known_profiles


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
