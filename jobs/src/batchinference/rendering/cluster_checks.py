"""Checks the devices, capacity types, paths, queue and group names of a job on a cluster."""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from posixpath import normpath

from batchinference.plan import WorkerGroup
from batchinference.plan.groups import HEAD_GROUP
from batchinference.plan.stages import Profiles, profiles_of
from batchinference.rendering.kueue import check_queue
from batchinference.spec.addresses import is_local, local_path
from batchinference.spec.cluster import ALL_GROUPS, Cluster
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem, did_you_mean
from batchinference.spec.profiles import known_profiles
from batchinference.spec.resources import RAY_NAMES, Resources
from batchinference.spec.step_facts import NamedSource
from batchinference.spec.steps import Step, to_alias


def check_profiles(spec: BatchInferenceSpec) -> Iterator[Problem]:
    """Yield the problems with devices that steps request, given complete cluster settings. A
    replica may not have several kinds of devices. A device without a profile is also a problem.
    Only a profile has the labels of nodes with this device in this cloud. Without the labels, a pod
    might get a more expensive GPU."""
    for index, step in enumerate(spec.steps):
        if step.resources:
            yield from _check(f"spec.steps[{index}].resources", step, spec.cluster.profiles)


def _check(field: str, step: Step, profiles: Profiles) -> Iterator[Problem]:
    asked, known = step.resources or Resources(), known_profiles(profiles)
    for name in sorted(asked.custom.keys() - known.keys()):
        yield Problem(f"{field}.custom.{name}", _unknown(name, list(known), "resource, device"))
    for name in asked.accelerator_types or ():
        if name not in profiles:
            names = [*profiles, *RAY_NAMES]
            yield Problem(f"{field}.acceleratorType", _unknown(name, names, "nodeSelector"))
    custom = tuple(asked.custom.items())
    devices = profiles_of(asked.gpu, custom, asked.accelerator_type, profiles)
    kinds = {name: profile.device for name, profile in devices.items() if profile.device}
    if len(kinds) > 1:
        message = f"a replica computes on one kind of device, not on {' and '.join(kinds)}"
        yield Problem(field, f"{message}. Request only one of them")


def check_fallback(spec: BatchInferenceSpec) -> Iterator[Problem]:
    """Yield the problems with the devices of all choices, and with the capacity types."""
    yield from check_profiles(spec)
    known, field = spec.cluster.profiles, "spec.cluster.fallback.capacityTypes"
    for name in spec.cluster.fallback.capacity_types:
        if name not in known:
            yield Problem(field, _unknown(name, list(known), "nodeSelector, tolerations"))
        elif known[name].resource or known[name].device or known[name].resource_claim_template_name:
            message = f"the profile '{name}' is for a device. Use a profile that only selects nodes"
            yield Problem(field, message)


def _unknown(name: str, names: list[str], fields: str) -> str:
    similar = (other for other in names if other != name and _is_spelling(other, name))
    return (
        f"no profile defines '{name}' on this cluster. Add cluster.profiles.{name} with "
        f"{fields}, or ask the platform team to add it to the defaults"
        + did_you_mean(name, similar)
    )


def _is_spelling(name: str, other: str) -> bool:
    """Return whether two names may mean the same device. A100 and V100 do not, nor A10 and A100."""
    first, second = ((each[:1].lower(), re.findall("[0-9]", each)) for each in (name, other))
    return first == second


def check_cluster(spec: BatchInferenceSpec, groups: Sequence[WorkerGroup]) -> Iterator[Problem]:
    """Yield the problems of a job with complete cluster settings, except problems of its pods."""
    yield from check_paths(spec)
    yield from check_fallback(spec)
    yield from check_queue(spec.cluster, groups)
    yield from _check_group_names(spec.cluster, [group.name for group in groups])


def _check_group_names(cluster: Cluster, groups: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each unknown group in `rayStartParams`."""
    known = [HEAD_GROUP, *groups]
    for name in cluster.ray_start_params:
        if name not in (ALL_GROUPS, *known):
            there = f"{', '.join(known)}, and '{ALL_GROUPS}' for all{did_you_mean(name, known)}"
            message = f"there is no group '{name}', only {there}"
            yield Problem("spec.cluster.rayStartParams", message)


_FIX = "use s3://, gs:// or az://, or mount a volume that all pods share (cluster.volumes)"


def check_paths(spec: BatchInferenceSpec) -> Iterator[Problem]:
    """Yield a problem for each local path that may differ between pods: relative paths, and output
    paths on no shared volume. Absolute input paths are accepted, because the image may contain the
    input."""
    for field, path in spec.read.locations.items():
        if is_local(path) and not _absolute(path):
            yield _relative(f"spec.read.{field}", path)
    for index, step in enumerate(spec.steps):
        for name, source in step.facts.sources.items():
            if _is_relative(source):
                field = f"spec.steps[{index}].{to_alias(step.kind)}.{to_alias(name)}"
                yield _relative(field, source.uri)
    for field, path in _outputs(spec):
        if is_local(path) and not _mounted(path, spec):
            message = f"'{path}' is not on a writable volume that outlives the pods: {_FIX}"
            yield Problem(field, message)


def _outputs(spec: BatchInferenceSpec) -> Iterator[tuple[str, str]]:
    """Yield the fields with paths to which a job writes, and these paths."""
    for name, path in spec.write.locations.items():
        yield f"spec.write.{name}", path
    if spec.errors.path is not None:
        yield "spec.errors.path", spec.errors.path
    for index, step in enumerate(spec.steps):
        if step.cache:
            yield f"spec.steps[{index}].cache.path", step.cache.path


def _relative(field: str, path: str) -> Problem:
    return Problem(field, f"'{path}' is a relative path, which no pod has: {_FIX}")


def _absolute(path: str) -> bool:
    return local_path(path).startswith("/")


def _is_relative(source: NamedSource) -> bool:
    """Return whether a source is a relative path. A model `./model` is a path. `team/model` is not,
    because it may also be the id of a model on the Hub."""
    is_path = not source.may_be_of_hub or source.uri.startswith((".", "~", "file:"))
    return is_path and is_local(source.uri) and not _absolute(source.uri)


def _mounted(path: str, spec: BatchInferenceSpec) -> bool:
    """Return whether a path is on a volume that is writable and outlives the pods. Of volumes that
    are mounted inside of each other, only the innermost one counts."""
    target = PurePosixPath(normpath(local_path(path)))
    mounts = {normpath(mount.mount_path): mount for mount in spec.cluster.volume_mounts}
    above = [directory for directory in mounts if target.is_relative_to(directory)]
    if not above:
        return False
    innermost = mounts[max(above, key=len)]
    volumes = {volume.name: volume for volume in spec.cluster.volumes}
    return volumes[innermost.name].outlives_pods and not innermost.read_only
