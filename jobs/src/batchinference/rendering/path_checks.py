"""Checks the local paths in a job: on a cluster, every pod has its own disk."""

from __future__ import annotations

from pathlib import PurePosixPath
from posixpath import normpath

from batchinference.spec.addresses import is_local, local_path
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem
from batchinference.spec.step_facts import NamedSource
from batchinference.spec.steps import Step, to_alias
from batchinference.spec.volumes import VolumeMount

_FIX = "use s3://, gs:// or az://, or mount a volume that all pods share (cluster.volumes)"


def check_paths(spec: BatchInferenceSpec) -> list[Problem]:
    """Return a problem for each local path that differs between pods: for relative paths, and for
    output paths that are on no shared volume. Absolute input paths are accepted, because the image
    may contain the input."""
    problems = []
    for field, path in spec.read.locations.items():
        if is_local(path) and not _absolute(path):
            problems.append(_relative(f"spec.read.{field}", path))
    for index, step in enumerate(spec.steps):
        paths = _relative_paths(step).items()
        problems += [_relative(f"spec.steps[{index}].{field}", path) for field, path in paths]
    outputs: list[tuple[str, str | None]] = [
        *((f"spec.write.{field}", path) for field, path in spec.write.locations.items()),
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


def _relative_paths(step: Step) -> dict[str, str]:
    """Return the relative paths in a step, by field."""
    return {
        f"{to_alias(step.kind)}.{to_alias(field)}": source.uri
        for field, source in step.facts.sources.items()
        if _is_relative(source)
    }


def _relative(field: str, path: str) -> Problem:
    return Problem(field, f"'{path}' is a relative path, which no pod has: {_FIX}")


def _absolute(path: str) -> bool:
    return local_path(path).startswith("/")


def _is_relative(source: NamedSource) -> bool:
    """Return whether a source is a relative path. A text that may be the id of a Hub model is
    none."""
    is_path = not source.may_be_of_hub or source.uri.startswith((".", "~", "file:"))
    return is_path and is_local(source.uri) and not _absolute(source.uri)


def _mounted(path: str, spec: BatchInferenceSpec) -> bool:
    """Return whether the innermost volume that is mounted above a path is writable and outlives the
    pods; false without a volume."""
    target = PurePosixPath(normpath(local_path(path)))
    mounts = [one for one in spec.cluster.volume_mounts if target.is_relative_to(_path(one))]
    if not mounts:
        return False
    innermost = max(mounts, key=lambda mount: len(_path(mount)))
    volumes = {volume.name: volume for volume in spec.cluster.volumes}
    return volumes[innermost.name].kept and not innermost.read_only


def _path(mount: VolumeMount) -> str:
    return normpath(mount.mount_path)
