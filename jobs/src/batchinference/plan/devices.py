"""Devices: what replicas get beside CPUs and memory, and what that is by the profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from batchinference.plan.stages import Custom, Stage
from batchinference.spec.merge import filled
from batchinference.spec.profiles import GPU, Profile, known_profiles

Profiles = Mapping[str, Profile]


def with_devices(stage: Stage, profiles: Profiles) -> Stage:
    """The stage with the custom resources that its pool asks for, and the kinds of its devices."""
    asked = stage.steps[0].resources if stage.replicas else None
    if asked is None:
        return stage
    custom = tuple(sorted(asked.custom.items()))
    found = profiles_of(stage.gpus, custom, asked.accelerator_type, profiles)
    kinds = tuple((name, profile.device) for name, profile in found.items() if profile.device)
    return replace(stage, custom=custom, accelerator=asked.accelerator_type, kinds=kinds)


def profiles_of(
    gpus: int, custom: Custom, accelerator: str | None, profiles: Profiles
) -> dict[str, Profile]:
    """The profile of each resource that is asked for, by Ray's name of it, GPUs first.

    That of the accelerator's type lies over that of the device. A resource without a profile has an
    empty one.
    """
    known = known_profiles(profiles)
    names = [GPU, *dict(custom)] if gpus else list(dict(custom))
    found = {name: known.get(name, Profile()) for name in names}
    if accelerator in known and names:
        device = next((name for name in names if found[name].device), names[0])
        found[device] = filled(known[accelerator], found[device])
    return found
