"""Checks whether a cluster would accept a job for which a plan exists."""

from __future__ import annotations

from collections.abc import Sequence

from batchinference.plan import WorkerGroup
from batchinference.rendering.kueue import check_queue
from batchinference.rendering.limits import check_limits, check_priority
from batchinference.rendering.paths import check_paths
from batchinference.rendering.profiles import check_profiles
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem


def check_cluster(spec: BatchInferenceSpec, groups: Sequence[WorkerGroup]) -> list[Problem]:
    """Return all reasons why a cluster would reject a job whose cluster settings are complete."""
    return [
        *check_paths(spec),
        *check_profiles(spec),
        *check_limits(spec.cluster, groups),
        *check_priority(spec),
        *check_queue(spec.cluster, groups),
    ]
