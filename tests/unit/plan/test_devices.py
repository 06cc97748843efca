"""Devices in a plan: their worker groups, kinds and profiles."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.plan import CPU_GROUP, Plan, Stage, WorkerGroup, plan_for_cluster
from batchinference.plan.stages import profiles_of
from batchinference.spec.profiles import Profile
from support.documents.minimal import Document, model_step
from support.documents.parsed import spec_of


def plan(*steps: Document, **profiles: Document) -> Plan:
    return plan_for_cluster(spec_of(steps=list(steps), cluster={"profiles": profiles}))


def with_resources(name: str = "embed", limit: int = 1, **resources: Any) -> Document:
    return model_step(name, replicas={"max": limit}, resources=resources)


def profile(**fields: Any) -> Profile:
    return Profile.model_validate(fields)


def stage(*steps: Document, **profiles: Document) -> Stage:
    (only,) = plan(*steps, **profiles).stages
    return only


def test_custom_resources_determine_the_shape_of_pods() -> None:
    step = with_resources(
        limit=3, cpu=4, custom={"NPU": 2, "licence": 1}, acceleratorType="Ascend910B"
    )
    made = plan(step)
    assert made.groups[1:] == (
        WorkerGroup(
            "embed",
            cpus=4,
            gpus=0,
            memory="4Gi",
            min=0,
            max=3,
            custom=(("NPU", 2), ("licence", 1)),
            accelerator="Ascend910B",
        ),
    )
    assert made.group_of(made.stages[0]) == "embed"


def test_pools_with_equal_devices_share_a_group() -> None:
    made = plan(
        with_resources("a", gpu=1, acceleratorType="T4"),
        with_resources("b", gpu=1, acceleratorType="A100"),
        with_resources("c", gpu=1),
        with_resources("d", gpu=1, acceleratorType="T4", limit=2),
        with_resources("e", custom={"NPU": 1, "licence": 2}),
        with_resources("f", custom={"licence": 2, "NPU": 1}),
        with_resources("g", custom={"NPU": 1}),
        with_resources("h"),
    )
    groups = [made.group_of(stage) for stage in made.stages]
    assert groups == ["a", "b", "c", "a", "e", "e", "g", CPU_GROUP]
    assert made.groups[0].custom == ()
    assert {group.name: group.max for group in made.groups[1:]} == {
        "a": 3, "b": 1, "c": 1, "e": 2, "g": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("resources", "profiles", "kinds"),
    [
        ({"gpu": 2}, {}, {"GPU": "cuda"}),
        ({"custom": {"NPU": 1}}, {}, {"NPU": "npu"}),
        ({"custom": {"licence": 1}}, {}, {}),
        ({"custom": {"licence": 1}}, {"licence": {}}, {}),
        ({"custom": {"XPU": 1}}, {"XPU": {"device": "xpu"}}, {"XPU": "xpu"}),
        ({"gpu": 1, "acceleratorType": "Max"}, {"Max": {"device": "xpu"}}, {"GPU": "xpu"}),
        ({"gpu": 1, "custom": {"licence": 1}, "acceleratorType": "T4"}, {"T4": {}},
         {"GPU": "cuda"}),
    ],
    ids=str,
)  # fmt: skip
def test_device_kind_comes_from_its_profile(
    resources: Document, profiles: Document, kinds: dict[str, str]
) -> None:
    assert dict(stage(with_resources(**resources), **profiles).kinds) == kinds


def test_profile_of_an_accelerator_type_overrides_the_device_profile() -> None:
    profiles = {
        "NPU": profile(nodeSelector={"arch": "arm64", "npu": "any"}, runtimeClassName="ascend"),
        "Ascend910B": profile(nodeSelector={"npu": "910B"}, resource="huawei.com/Ascend910B"),
        "licence": profile(nodeSelector={"licensed": "yes"}),
    }
    custom = (("NPU", 1), ("licence", 1))
    assert profiles_of(0, custom, "Ascend910B", profiles) == {
        "NPU": profile(
            resource="huawei.com/Ascend910B",
            device="npu",
            nodeSelector={"arch": "arm64", "npu": "910B"},
            runtimeClassName="ascend",
        ),
        "licence": profiles["licence"],
    }


def test_accelerator_type_applies_to_gpus_before_custom_resources() -> None:
    profiles = profiles_of(1, (("NPU", 1),), "T4", {"T4": profile(nodeSelector={"gpu": "t4"})})
    assert profiles["GPU"].node_selector == {"gpu": "t4"}
    assert profiles["NPU"].node_selector == {}
