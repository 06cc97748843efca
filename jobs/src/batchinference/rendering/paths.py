"""Local paths in a job that runs on a cluster, where every pod has a disk of its own."""

from __future__ import annotations

from pathlib import PurePosixPath

from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem
from batchinference.spec.uris import is_local, local_path

_WAY_OUT = "use s3://, or mount a volume that all pods share (cluster.volumes)"


def check_paths(spec: BatchInferenceSpec) -> list[Problem]:
    """Paths that mean something else in each pod.

    Input may also lie in the image, where an absolute path names it; output needs a volume.
    """
    problems = []
    for index, path in enumerate(spec.read.paths):
        if is_local(path) and not _absolute(path):
            problems.append(_relative(f"spec.read.paths[{index}]", path))
    for index, step in enumerate(spec.steps):
        source = step.model.source if step.model else None
        if source is not None and source.startswith((".", "~")):
            problems.append(_relative(f"spec.steps[{index}].model.source", source))
    outputs = [("spec.write.path", spec.write.path), ("spec.errors.path", spec.errors.path)]
    for field, output in outputs:
        if output is not None and is_local(output) and not _mounted(output, spec):
            message = f"'{output}' is not on a mounted volume, so it would be lost: {_WAY_OUT}"
            problems.append(Problem(field, message))
    return problems


def _relative(field: str, path: str) -> Problem:
    return Problem(field, f"'{path}' is a relative path, which no pod has: {_WAY_OUT}")


def _absolute(path: str) -> bool:
    return local_path(path).startswith("/")


def _mounted(path: str, spec: BatchInferenceSpec) -> bool:
    inside = PurePosixPath(local_path(path))
    return any(
        inside.is_relative_to(volume.mount_path) and not volume.read_only
        for volume in spec.cluster.volumes
    )
