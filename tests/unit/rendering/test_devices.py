"""Devices of worker groups, in the fields of Ray, KubeRay and Kubernetes."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from batchinference.spec import SpecError
from plugins.messages import Messages
from support.documents.minimal import Document, model_step
from support.documents.parsed import job
from support.operator.rendered import Object, Rendered, render


def rendered_step(resources: Document, **cluster: Any) -> Rendered:
    return render(job(steps=[model_step(resources=resources)], cluster=cluster))


def pod_of(resources: Document, **cluster: Any) -> Object:
    pod: Object = rendered_step(resources, **cluster).workers["embed"]["template"]["spec"]
    return pod


def limits_of(pod: Object) -> Object:
    limits: Object = pod["containers"][0]["resources"]["limits"]
    return {name: count for name, count in limits.items() if "/" in name}


def test_custom_resources_are_readable_for_kuberay_and_a_shell() -> None:
    made = rendered_step({"custom": {"NPU": 2}, "acceleratorType": "A"}, profiles={"A": {}})
    written = made.workers["embed"]["rayStartParams"]["resources"]
    expected = {"NPU": 2, "accelerator_type:A": 1}
    assert json.loads(written.strip("'\"` ")) == expected  # as KubeRay's getResourcesMap does
    (_, argument) = shlex.split(f"--resources={written}")[0].split("=", 1)
    assert json.loads(argument) == expected


def test_npus_require_no_profile() -> None:
    pod = pod_of({"custom": {"NPU": 2}})
    for kind in ("limits", "requests"):
        assert pod["containers"][0]["resources"][kind]["huawei.com/Ascend910"] == "2"
    assert pod["tolerations"] == [
        {"key": "huawei.com/Ascend910", "operator": "Exists", "effect": "NoSchedule"}
    ]


def test_logical_custom_resource_is_known_to_ray_only() -> None:
    profiles = {"licence": {"nodeSelector": {"licensed": "yes"}}}
    made = rendered_step({"custom": {"licence": 1}}, profiles=profiles)
    pod = made.workers["embed"]["template"]["spec"]
    assert limits_of(pod) == {}
    assert "tolerations" not in pod
    assert pod["nodeSelector"] == {"licensed": "yes"}
    assert made.workers["embed"]["rayStartParams"]["resources"] == "'{\"licence\": 1}'"


@pytest.mark.parametrize(
    ("profiles", "resource"),
    [
        ({}, "nvidia.com/gpu"),
        ({"GPU": {"resource": "amd.com/gpu"}}, "amd.com/gpu"),
        ({"T4": {"resource": "nvidia.com/mig-1g.5gb"}}, "nvidia.com/mig-1g.5gb"),
        ({"GPU": {"resource": "amd.com/gpu"}, "T4": {"resource": "a/gpu"}}, "a/gpu"),
    ],
)
def test_gpu_resource_follows_the_profiles(profiles: Document, resource: str) -> None:
    asked = {"gpu": 3, "acceleratorType": "T4"}
    made = rendered_step(asked, profiles={"T4": {}, **profiles})
    group = made.workers["embed"]
    assert limits_of(group["template"]["spec"]) == {resource: "3"}
    assert group["rayStartParams"]["num-gpus"] == "3"


def test_profile_applies_to_pods_of_its_group_only() -> None:
    made = rendered_step(
        {"gpu": 1, "acceleratorType": "T4"},
        nodeSelector={"pool": "batch", "zone": "a"},
        tolerations=[{"key": "batch"}],
        env=[{"name": "A", "value": "cluster"}, {"name": "B", "value": "cluster"}],
        profiles={
            "T4": {
                "nodeSelector": {"pool": "t4"},
                "tolerations": [{"key": "t4"}],
                "env": [{"name": "B", "value": "profile"}],
                "runtimeClassName": "nvidia",
            }
        },
    )
    pod = made.workers["embed"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "t4", "zone": "a"}
    assert [one["key"] for one in pod["tolerations"]] == ["batch", "t4", "nvidia.com/gpu"]
    assert [(one["name"], one["value"]) for one in pod["containers"][0]["env"][2:]] == [
        ("A", "cluster"),
        ("B", "profile"),
    ]
    assert pod["runtimeClassName"] == "nvidia"
    for other in (made.pods[0]["spec"], made.workers["cpu"]["template"]["spec"]):
        assert other["nodeSelector"] == {"pool": "batch", "zone": "a"}
        assert [one["key"] for one in other["tolerations"]] == ["batch"]
        assert [one["value"] for one in other["containers"][0]["env"][-2:]] == ["cluster"] * 2
        assert "runtimeClassName" not in other


def refusal(resources: Document, **cluster: Any) -> str:
    with pytest.raises(SpecError) as refused:
        rendered_step(resources, **cluster)
    return str(refused.value)


@pytest.mark.parametrize(
    "resources",
    [
        {"gpu": 1, "acceleratorType": "T4", "custom": {"a": 1, "b": 1}},
        {"custom": {"XPU": 1}},
        {"gpu": 1, "custom": {"NPU": 1}},
    ],
    ids=["accelerator type", "custom resource", "two kinds of devices"],
)
def test_device_without_profile_or_of_two_kinds_is_refused(
    resources: Document, messages: Messages
) -> None:
    messages.check(refusal(resources, profiles={"XPUs": {}}))


@pytest.mark.parametrize(
    ("name", "near"), [("A100-80GB", "A100-80G"), ("Ascend910C", "Ascend910B")]
)
def test_accelerator_type_suggests_a_name_of_ray(name: str, near: str) -> None:
    assert refusal({"gpu": 1, "acceleratorType": name}).endswith(f"did you mean '{near}'?")
