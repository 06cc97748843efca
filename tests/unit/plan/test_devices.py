"""Devices in a plan: which groups they need, and of which kind they are."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.plan import CPU_GROUP, Plan, Stage, WorkerGroup, plan_for_cluster
from batchinference.plan.devices import profiles_of
from batchinference.spec.profiles import Profile
from support.documents.minimal import Document, model_step
from support.documents.parsed import spec_of


def plan(*steps: Document, **profiles: Document) -> Plan:
    return plan_for_cluster(spec_of(steps=list(steps), cluster={"profiles": profiles}))


def asking(name: str = "embed", most: int = 1, **resources: Any) -> Document:
    return model_step(name, replicas={"max": most}, resources=resources)


def profile(**fields: Any) -> Profile:
    return Profile.model_validate(fields)


def stage(*steps: Document, **profiles: Document) -> Stage:
    (only,) = plan(*steps, **profiles).stages
    return only


def test_a_pool_with_custom_resources_gets_pods_of_just_its_shape() -> None:
    step = asking(most=3, cpu=4, custom={"NPU": 2, "licence": 1}, acceleratorType="Ascend910B")
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


@pytest.mark.parametrize("custom", [{"NPU": 1}, {"licence": 1}], ids=["a device", "no device"])
def test_custom_resources_are_never_on_the_group_cpu(custom: Document) -> None:
    made = plan(asking(custom=custom), asking("plain"))
    assert [made.group_of(stage) for stage in made.stages] == ["embed", CPU_GROUP]
    assert made.groups[0].custom == ()


def test_pods_are_shared_where_devices_and_their_types_are_the_same() -> None:
    made = plan(
        asking("a", gpu=1, acceleratorType="T4"),
        asking("b", gpu=1, acceleratorType="A100"),
        asking("c", gpu=1),
        asking("d", gpu=1, acceleratorType="T4", most=2),
        asking("e", custom={"NPU": 1, "licence": 2}),
        asking("f", custom={"licence": 2, "NPU": 1}),
        asking("g", custom={"NPU": 1}),
    )
    groups = [made.group_of(stage) for stage in made.stages]
    assert groups == ["a", "b", "c", "a", "e", "e", "g"]
    assert {group.name: group.max for group in made.groups[1:]} == {
        "a": 3, "b": 1, "c": 1, "e": 2, "g": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("resources", "profiles", "kinds"),
    [
        pytest.param({"gpu": 2}, {}, {"GPU": "cuda"}, id="GPUs"),
        pytest.param({"custom": {"NPU": 1}}, {}, {"NPU": "npu"}, id="NPUs"),
        pytest.param({"custom": {"licence": 1}}, {}, {}, id="no device"),
        pytest.param({"custom": {"licence": 1}}, {"licence": {}}, {}, id="a profile without kind"),
        pytest.param(
            {"custom": {"XPU": 1}}, {"XPU": {"device": "xpu"}}, {"XPU": "xpu"}, id="a profile"
        ),
        pytest.param(
            {"gpu": 1, "acceleratorType": "Max"},
            {"Max": {"device": "xpu"}},
            {"GPU": "xpu"},
            id="the kind of a type of GPU",
        ),
        pytest.param(
            {"gpu": 1, "custom": {"licence": 1}, "acceleratorType": "T4"},
            {"T4": {}},
            {"GPU": "cuda"},
            id="a type without kind",
        ),
    ],
)
def test_the_kind_of_a_device_is_in_its_profile(
    resources: Document, profiles: Document, kinds: dict[str, str]
) -> None:
    assert dict(stage(asking(**resources), **profiles).kinds) == kinds


def test_tasks_have_no_devices() -> None:
    step = {"name": "f", "python": {"callable": "m:f"}, "resources": {"cpu": 2}}
    assert stage(step).resources == {}


def test_the_profile_of_a_type_lies_over_that_of_the_device() -> None:
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


def test_the_type_is_that_of_the_gpus_where_there_are_any() -> None:
    found = profiles_of(1, (("NPU", 1),), "T4", {"T4": profile(nodeSelector={"gpu": "t4"})})
    assert found["GPU"].node_selector == {"gpu": "t4"}
    assert found["NPU"].node_selector == {}
