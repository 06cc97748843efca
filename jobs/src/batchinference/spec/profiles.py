"""Profiles: what the devices that steps ask for are on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from batchinference.spec.accelerators import ResourceName
from batchinference.spec.base import DEVICE_KIND, KUBERNETES_RESOURCE, SpecModel
from batchinference.spec.merge import filled
from batchinference.spec.pods import Environment, NodeSelector, ObjectName, Toleration

GPU = "GPU"
"""Ray's name of GPUs of any type, and that of their profile."""
NPU = "NPU"


class Profile(SpecModel):
    """What pods need for one kind of device, or of accelerator."""

    resource: Annotated[str, Field(pattern=KUBERNETES_RESOURCE, max_length=253)] | None = None
    """The Kubernetes resource that stands for one device, as its device plugin names it:
    nvidia.com/gpu, amd.com/gpu, huawei.com/Ascend910. Pods tolerate a taint of that name. Without
    one, a custom resource is counted by Ray alone."""
    device: Annotated[str, Field(pattern=DEVICE_KIND, max_length=32)] | None = None
    """PyTorch's name of the kind of device: cuda, npu, xpu. Without one, a custom resource is no
    device and its steps compute on the CPU."""
    node_selector: NodeSelector = {}
    """Labels that a node with these devices has, besides those of cluster.nodeSelector."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    """Taints that the pods tolerate besides those of cluster.tolerations."""
    env: Environment = []
    """Environment variables of the pods, besides those of cluster.env."""
    runtime_class_name: ObjectName | None = None
    """The RuntimeClass of the pods, where the devices need one."""


Profiles = Annotated[dict[ResourceName, Profile], Field(max_length=32)]

BUILT_IN: Mapping[str, Profile] = {
    GPU: Profile(resource="nvidia.com/gpu", device="cuda"),
    NPU: Profile(resource="huawei.com/Ascend910", device="npu"),
}
"""Profiles that need not be given. Ray itself shows a replica its own devices alone, by
CUDA_VISIBLE_DEVICES and ASCEND_RT_VISIBLE_DEVICES."""


def known_profiles(given: Mapping[str, Profile]) -> dict[str, Profile]:
    """The profiles that are given, over those that need not be."""
    built_in = {name: filled(given.get(name, Profile()), BUILT_IN[name]) for name in BUILT_IN}
    return {**given, **built_in}
