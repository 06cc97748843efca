"""Devices of a worker group: what its pods get for them, and what Ray is told of them."""

from __future__ import annotations

import json
import math
from typing import Any

from batchinference.plan import WorkerGroup
from batchinference.plan.devices import Profiles, profiles_of
from batchinference.rendering.objects import dump
from batchinference.spec.profiles import GPU, Profile


def start_parameters(group: WorkerGroup) -> dict[str, str]:
    """Parameters of `ray start`. Ray's autoscaler plans by them as well, so that all that a replica
    asks for must stand here."""
    parameters = {"num-cpus": str(math.ceil(group.cpus))}
    if group.gpus:  # KubeRay finds them by itself only where their resource ends in `gpu`
        parameters["num-gpus"] = str(group.gpus)
    resources = dict(group.custom)
    if group.accelerator:
        resources[f"accelerator_type:{group.accelerator}"] = 1
    if resources:
        # in quotes for KubeRay's shell. Escaped quotes inside, as Ray's documentation has them, are
        # no JSON to KubeRay, which then leaves out all devices
        parameters["resources"] = f"'{json.dumps(resources)}'"
    return parameters


def add_devices(pod: dict[str, Any], group: WorkerGroup, profiles: Profiles) -> None:
    """What the profiles of the group's devices say, put into the spec of its pods."""
    counts = {GPU: group.gpus, **dict(group.custom)}
    found = profiles_of(group.gpus, group.custom, group.accelerator, profiles)
    for name, profile in found.items():
        _place(pod, profile)
        if profile.resource:
            _grant(pod, profile.resource, counts[name])


def device_count(group: WorkerGroup, profiles: Profiles) -> int:
    """How many devices a pod of the group has: all that its profiles request of Kubernetes, and
    those that Ray alone counts. Whatever a profile is called, it counts."""
    counts = {GPU: group.gpus, **dict(group.custom)}
    found = profiles_of(group.gpus, group.custom, group.accelerator, profiles)
    return sum(
        counts[name] for name, profile in found.items() if profile.resource or profile.device
    )


def _place(pod: dict[str, Any], profile: Profile) -> None:
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


def _grant(pod: dict[str, Any], resource: str, count: int) -> None:
    """Add so many of a resource to limits and requests, and tolerate its nodes, which are often
    tainted by its name."""
    for side in pod["containers"][0]["resources"].values():
        side[resource] = str(int(side.get(resource, 0)) + count)
    taint = {"key": resource, "operator": "Exists", "effect": "NoSchedule"}
    pod["tolerations"] = [*pod.get("tolerations", []), taint]
