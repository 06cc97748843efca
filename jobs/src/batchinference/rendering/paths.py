"""Checks the local paths in a job. On a cluster, every pod has its own disk."""

from __future__ import annotations

from pathlib import PurePosixPath
from posixpath import normpath

from batchinference.spec.addresses import is_local, local_path
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem
from batchinference.spec.step_facts import Place
from batchinference.spec.steps import Step, to_alias
from batchinference.spec.volumes import VolumeMount

_FIX = "use s3://, gs:// or az://, or mount a volume that all pods share (cluster.volumes)"


def check_paths(spec: BatchInferenceSpec) -> list[Problem]:
    """Return a problem for each path that does not refer to the same place in every pod.

    Absolute input paths are accepted, because the image may contain the input. Output requires a
    volume.
    """
    problems = []
    for field, place in spec.read.locations.items():
        if is_local(place) and not _absolute(place):
            problems.append(_problem(f"spec.read.{field}", place))
    for index, step in enumerate(spec.steps):
        relative = _relative_places(step).items()
        problems += [_problem(f"spec.steps[{index}].{field}", place) for field, place in relative]
    outputs: list[tuple[str, str | None]] = [
        *((f"spec.write.{field}", place) for field, place in spec.write.locations.items()),
        ("spec.errors.path", spec.errors.path),
        *(
            (f"spec.steps[{index}].cache.path", step.cache.path)
            for index, step in enumerate(spec.steps)
            if step.cache
        ),
    ]
    for field, output in outputs:
        if output is not None and is_local(output) and not _mounted(output, spec):
            message = f"'{output}' is not on a mounted volume, so it would be lost: {_FIX}"
            problems.append(Problem(field, message))
    return problems


def _relative_places(step: Step) -> dict[str, str]:
    """Return the relative paths in a step, by field."""
    return {
        f"{to_alias(step.kind)}.{to_alias(field)}": place.uri
        for field, place in step.facts.places.items()
        if _is_relative(place)
    }


def _problem(field: str, path: str) -> Problem:
    return Problem(field, f"'{path}' is a relative path, which no pod has: {_FIX}")


def _absolute(path: str) -> bool:
    return local_path(path).startswith("/")


def _is_relative(place: Place) -> bool:
    """Return whether a place is a relative path. The name of a Hub model is not."""
    is_path = not place.may_be_of_hub or place.uri.startswith((".", "~", "file:"))
    return is_path and is_local(place.uri) and not _absolute(place.uri)


def _mounted(path: str, spec: BatchInferenceSpec) -> bool:
    """Return whether a path is on a volume, and the innermost volume at this path is writable and
    outlives its pods."""
    target = PurePosixPath(normpath(local_path(path)))
    mounts = [one for one in spec.cluster.volume_mounts if target.is_relative_to(_path(one))]
    if not mounts:
        return False
    innermost = max(mounts, key=lambda mount: len(_path(mount)))
    volumes = {volume.name: volume for volume in spec.cluster.volumes}
    return volumes[innermost.name].kept and not innermost.read_only


def _path(mount: VolumeMount) -> str:
    return normpath(mount.mount_path)
