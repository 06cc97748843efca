"""Adds the devices of a worker group to its pods and to the parameters of `ray start`."""

import json
import math
from typing import Any

from batchinference.plan import WorkerGroup
from batchinference.plan.stages import Profiles, profiles_of
from batchinference.rendering.names import dump
from batchinference.spec.durations import seconds_of
from batchinference.spec.profiles import GPU, Profile


def start_parameters(group: WorkerGroup) -> dict[str, str]:
    """Return the parameters of `ray start` for a group: all resources of a pod that replicas
    request. Ray's autoscaler scales a group only for resources that the group has."""
    parameters = {"num-cpus": str(math.ceil(group.cpus))}
    if group.gpus:  # KubeRay detects GPUs only if their resource name ends in `gpu`
        parameters["num-gpus"] = str(group.gpus)
    resources = dict(group.custom)
    if group.accelerator:
        resources[f"accelerator_type:{group.accelerator}"] = 1
    if resources:
        # Quoted for KubeRay's shell. Ray's documentation escapes the inner quotes, but then KubeRay
        # could not parse the value as JSON, and would omit all devices.
        parameters["resources"] = f"'{json.dumps(resources)}'"
    return parameters


def add_devices(pod: dict[str, Any], group: WorkerGroup, profiles: Profiles) -> None:
    """Add the settings from the profiles of the group's devices to its pod spec, in place."""
    counts = {GPU: group.gpus, **dict(group.custom)}
    of_group = profiles_of(group.gpus, group.custom, group.accelerator, profiles)
    for name, profile in of_group.items():
        apply_profile(pod, profile)
        if profile.resource_claim_template_name:
            _claim_devices(pod, profile.resource_claim_template_name, counts[name])
        elif profile.resource:
            _request_resource(pod, profile.resource, counts[name])


def device_count(group: WorkerGroup, profiles: Profiles) -> int:
    """Return the number of devices in a pod of the group. Profiles request them from Kubernetes, or
    only Ray counts them."""
    counts = {GPU: group.gpus, **dict(group.custom)}
    of_group = profiles_of(group.gpus, group.custom, group.accelerator, profiles)
    return sum(
        counts[name]
        for name, profile in of_group.items()
        if profile.resource or profile.device or profile.resource_claim_template_name
    )


def idle_seconds(group: WorkerGroup, profiles: Profiles) -> int | None:
    """Return the longest `idleTimeout` of the profiles of a group, in seconds; None if none is
    set."""
    of_group = profiles_of(group.gpus, group.custom, group.accelerator, profiles).values()
    timeouts = [seconds_of(profile.idle_timeout) for profile in of_group if profile.idle_timeout]
    return max(timeouts, default=None)


def apply_profile(pod: dict[str, Any], profile: Profile) -> None:
    """Add the settings of a profile to a pod spec, in place, but not its devices."""
    container = pod["containers"][0]
    own = {variable.name for variable in profile.env}
    others = [variable for variable in container["env"] if variable["name"] not in own]
    container["env"] = [*others, *(dump(variable) for variable in profile.env)]
    tolerations = [dump(toleration) for toleration in profile.tolerations]
    settings: dict[str, Any] = {
        "nodeSelector": {**pod.get("nodeSelector", {}), **profile.node_selector},
        "tolerations": [*pod.get("tolerations", []), *tolerations],
        "runtimeClassName": profile.runtime_class_name,
    }
    pod.update({name: value for name, value in settings.items() if value})
    container["image"] = profile.image or container["image"]


def _request_resource(pod: dict[str, Any], resource: str, count: int) -> None:
    """Add `count` units of a resource to limits and requests. Also tolerate a taint of the same
    name, which nodes with the resource often have."""
    resources = pod["containers"][0]["resources"]
    for quantities in (resources["limits"], resources["requests"]):
        quantities[resource] = str(int(quantities.get(resource, 0)) + count)
    taint = {"key": resource, "operator": "Exists", "effect": "NoSchedule"}
    pod["tolerations"] = [*pod.get("tolerations", []), taint]


def _claim_devices(pod: dict[str, Any], template: str, count: int) -> None:
    """Add `count` claims of a ResourceClaimTemplate to the pod and to its container."""
    claims = pod.setdefault("resourceClaims", [])
    names = [f"device-{number}" for number in range(len(claims), len(claims) + count)]
    claims += [{"name": name, "resourceClaimTemplateName": template} for name in names]
    of_container = pod["containers"][0]["resources"].setdefault("claims", [])
    of_container += [{"name": name} for name in names]
