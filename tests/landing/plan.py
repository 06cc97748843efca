"""The steps of a landing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from landing.long_tier import Due
from landing.steps import Step

START_CLUSTER = "START_CLUSTER"
"""The environment variable with the command that starts the cluster. Unset if one is running."""
TOTAL_BUDGET = 45 * 60.0
MAX_TOTAL = 80 * 60.0
"""The seconds after which a landing ends on any machine, however slow."""
LONG_MINUTES = 4.0
"""How long the groups of the long tier may take in one landing. At least one group runs."""


def plan(long_groups: Sequence[Due]) -> list[Step]:
    """Return the steps, with their budgets in seconds.

    Setup, lint, documentation and collection overlap with the start of the cluster, and the demo
    with the build of the images and their first pull. The suites run one after the other, because
    Ray and the pods start too slowly in parallel on two cores. Chaos is not run again if it fails:
    a row that is lost once is not a flaky test.
    """
    start_cluster = tuple(shlex.split(os.environ.get(START_CLUSTER, "true")))
    return [
        Step("cluster", start_cluster, 90, cold=1200),
        Step("setup", ("make", "setup"), 90, cold=600),
        Step("lint", ("make", "lint"), 120, after=("setup",), cold=600),
        Step("docs", ("make", "docs"), 60, after=("setup",), cold=300),
        Step("collect", ("make", "collect"), 60, after=("docs",), cold=300),
        Step("images", ("make", "images"), 300, after=("cluster", "setup"), cold=1200),
        Step("pull", ("make", "pull"), 60, after=("images",), cold=300),
        Step("demo", ("make", "demo"), 90, after=("cluster", "collect"), cold=300),
        Step("test", ("make", "test"), 540, after=("lint", "pull", "demo"), is_suite=True),
        Step("e2e", ("make", "e2e"), 720, after=("test",), is_suite=True),
        Step("chaos", ("make", "chaos"), 600, after=("e2e",), is_suite=True, retry=False),
        *_long_steps(long_groups),
    ]


def _long_steps(long_groups: Sequence[Due]) -> list[Step]:
    """Return steps that run one after the other, after the steps of every landing."""
    groups = [due.group for due in long_groups]
    before = ["chaos", *(group.step for group in groups)]
    return [
        Step(
            group.step,
            group.command,
            group.minutes * 60,
            after=(last,),
            is_suite=True,
            long_group=group.name,
        )
        for group, last in zip(groups, before, strict=False)
    ]
