"""Checks whether a planned job can run on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchinference.plan import WorkerGroup
from batchinference.plan.groups import HEAD_GROUP
from batchinference.rendering.kueue import check_queue
from batchinference.rendering.limits import check_priority
from batchinference.rendering.paths import check_paths
from batchinference.rendering.profiles import check_profiles
from batchinference.spec.cluster import ALL_GROUPS, Cluster
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem, did_you_mean


def check_cluster(spec: BatchInferenceSpec, groups: Sequence[WorkerGroup]) -> Iterator[Problem]:
    """Yield the problems of a job with complete cluster settings. Its pods are not checked here."""
    yield from check_paths(spec)
    yield from check_profiles(spec)
    yield from check_priority(spec)
    yield from check_queue(spec.cluster, groups)
    yield from _check_group_names(spec.cluster, [group.name for group in groups])


def _check_group_names(cluster: Cluster, groups: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each setting with an unknown worker group."""
    known = [HEAD_GROUP, *groups]
    for name in cluster.ray_start_params:
        if name not in (ALL_GROUPS, *known):
            there = f"{', '.join(known)}, and '{ALL_GROUPS}' for all{did_you_mean(name, known)}"
            yield Problem(
                "spec.cluster.rayStartParams", f"there is no group '{name}', only {there}"
            )
