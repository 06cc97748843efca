"""Devices of replicas (GPUs and custom resources), and the profiles that describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from batchinference.plan.stages import Custom, Stage
from batchinference.spec.defaults_merge import with_defaults
from batchinference.spec.profiles import GPU, Profile, known_profiles

Profiles = Mapping[str, Profile]


def with_devices(stage: Stage, profiles: Profiles) -> Stage:
    """Return the stage with its custom resources, accelerator type and PyTorch device types."""
    asked = stage.steps[0].resources if stage.replicas else None
    if asked is None:
        return stage
    custom = tuple(sorted(asked.custom.items()))
    found = profiles_of(stage.gpus, custom, asked.accelerator_type, profiles)
    kinds = tuple((name, profile.device) for name, profile in found.items() if profile.device)
    return replace(stage, custom=custom, accelerator=asked.accelerator_type, kinds=kinds)


def profiles_of(
    gpus: float, custom: Custom, accelerator: str | None, profiles: Profiles
) -> dict[str, Profile]:
    """Return the profile of each requested resource by Ray's resource name, GPUs first.

    The profile of the accelerator type overrides that of the first resource that is a device. A
    resource without a profile gets an empty one.
    """
    known = known_profiles(profiles)
    names = [GPU, *dict(custom)] if gpus else list(dict(custom))
    found = {name: known.get(name, Profile()) for name in names}
    if accelerator in known and names:
        device = next((name for name in names if found[name].device), names[0])
        found[device] = with_defaults(known[accelerator], found[device])
    return found
