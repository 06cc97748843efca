"""Profiles: how pods request the devices of steps on a cluster."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from batchinference.spec.base import DEVICE_KIND, KUBERNETES_RESOURCE, Money, SpecModel
from batchinference.spec.defaults_merge import with_defaults
from batchinference.spec.durations import Duration
from batchinference.spec.pod_settings import (
    Environment,
    Image,
    NodeSelector,
    ObjectName,
    Toleration,
)
from batchinference.spec.quantities import Quantity
from batchinference.spec.resources import ResourceName

GPU = "GPU"
"""Ray's name of GPUs of any type, and the name of their profile."""
NPU = "NPU"
OTHER_IMAGES = "BATCHINFERENCE_JOB_OTHER_IMAGES"
"""Environment variable of the head. It is set if profiles have their own images, because these
images may have libraries that the image of the head lacks."""


class Profile(SpecModel):
    """The settings of pods for one type of device or custom resource."""

    resource: Annotated[str, Field(pattern=KUBERNETES_RESOURCE, max_length=253)] | None = None
    """The Kubernetes resource that the device plugin provides for a device, such as nvidia.com/gpu,
    amd.com/gpu or huawei.com/Ascend910. Pods tolerate a taint with this name. Without `resource`,
    only Ray counts a custom resource, and pods do not request it."""
    device: Annotated[str, Field(pattern=DEVICE_KIND, max_length=32)] | None = None
    """PyTorch's name of the device type, such as cuda, npu or xpu. Without it, a custom resource is
    not a device, and steps with it compute on the CPU."""
    node_selector: NodeSelector = {}
    """Labels that a node with these devices must have, in addition to `cluster.nodeSelector`."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    """Taints that the pods tolerate, in addition to `cluster.tolerations`."""
    env: Environment = []
    """Environment variables of the pods, in addition to `cluster.env`."""
    resource_claim_template_name: ObjectName | None = None
    """The ResourceClaimTemplate of one device, instead of `resource`: pods have a claim for each
    device (dynamic resource allocation)."""
    runtime_class_name: ObjectName | None = None
    """The RuntimeClass of the pods, if the devices need one."""
    device_hour: Money | None = None
    """The price of a device per hour, instead of `prices.deviceHour` of the chart."""
    price_factor: Annotated[float, Field(ge=0, le=100), *Quantity] | None = None
    """The factor for the price of devices, such as 0.4 for spot nodes. Only for profiles in
    `cluster.fallback.capacityTypes`."""
    idle_timeout: Duration | None = None
    """How long a pod must be idle before it is removed, instead of `cluster.idleTimeout`."""
    image: Image | None = None
    """The image of the pods, such as one with CUDA or vLLM. By default, `cluster.image`. Both
    images must have the same versions of Python, Ray and BatchInference. If the job sets
    `cluster.image`, images in profiles of the platform are not used."""


Profiles = Annotated[dict[ResourceName, Profile], Field(max_length=32)]

BUILT_IN: Mapping[str, Profile] = {
    GPU: Profile(resource="nvidia.com/gpu", device="cuda"),
    NPU: Profile(resource="huawei.com/Ascend910", device="npu"),
}
"""Built-in profiles. Ray shows a replica only its own devices, with CUDA_VISIBLE_DEVICES and
ASCEND_RT_VISIBLE_DEVICES."""


def known_profiles(profiles: Mapping[str, Profile]) -> dict[str, Profile]:
    """Return the profiles of a job and the built-in profiles, merged by name."""
    changed = {
        name: with_defaults(profiles[name], BUILT_IN[name]) for name in BUILT_IN if name in profiles
    }
    return {**profiles, **BUILT_IN, **changed}
