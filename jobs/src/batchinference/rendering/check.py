"""Checks whether a planned job can run on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchinference.plan import WorkerGroup
from batchinference.rendering.kueue import check_queue
from batchinference.rendering.patches import check_groups
from batchinference.rendering.paths import check_paths
from batchinference.rendering.profiles import check_profiles
from batchinference.spec.cluster import Cluster
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem


def check_cluster(spec: BatchInferenceSpec, groups: Sequence[WorkerGroup]) -> Iterator[Problem]:
    """Yield the problems of a job with complete cluster settings. Its pods are not checked here."""
    yield from check_paths(spec)
    yield from check_profiles(spec)
    yield from check_queue(spec.cluster, groups)
    yield from _check_group_names(spec.cluster, [group.name for group in groups])


def _check_group_names(cluster: Cluster, groups: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each setting with an unknown worker group."""
    yield from check_groups("spec.cluster.rayStartParams", list(cluster.ray_start_params), groups)
    for index, patch in enumerate(cluster.patches):
        yield from check_groups(f"spec.cluster.patches[{index}].groups", patch.groups, groups)
