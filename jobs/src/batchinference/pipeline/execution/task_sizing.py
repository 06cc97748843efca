"""Computes the number of tasks of a single segment, and how often they commit."""

from __future__ import annotations

import math

from batchinference.pipeline.input.planning import MAX_TASKS, MIN_BLOCK_ROWS, SMALL_FILE_ROWS

MIN_CPU_TASKS = 4
"""Minimum number of tasks for each task that the CPUs can run, so that all CPUs finish at about the
same time. Inputs with few rows or few parts have fewer tasks."""
LARGE_TASK_ROWS, MIN_LARGE_TASKS = 2048, 3
"""Rows of a large task, and minimum number of large tasks for each task that the CPUs can run."""
FULL_FILES = 4
"""Minimum number of files with `rowsPerFile` rows that a task writes before a smaller last one."""
SMALL_COMMIT_SECONDS, SMALL_COMMIT_UNMERGED_SECONDS = 60.0, 600.0
"""Seconds after which a task also commits few rows. The second number applies if small output files
are never merged."""


def number_of_tasks(
    blocks: int,
    rows: float,
    at_once: float,
    parts: int | None,
    *,
    merged: bool,
    large_rows: int | None,
) -> int:
    """Return the number of tasks for `rows` input rows, which are planned as `blocks` blocks. There
    are more tasks if the CPUs need more, and fewer if tasks should have at least `large_rows` rows.

    `at_once` is the number of tasks that the CPUs can run. `parts` is the maximum number of parts
    of the input; None if it can be divided at any row. `merged` says whether small output files are
    merged at the end of the job."""
    by_rows = rows // (MIN_BLOCK_ROWS if merged else SMALL_FILE_ROWS)
    for_cpus = min(MIN_CPU_TASKS * at_once, by_rows, MAX_TASKS)
    tasks = max(blocks, int(for_cpus if parts is None else min(for_cpus, parts)))
    if large_rows is None:
        return tasks
    return min(tasks, math.ceil(max(rows / large_rows, MIN_LARGE_TASKS * at_once)))


def small_commit_seconds(*, merged: bool) -> float:
    """Return the seconds after which a task commits its rows, even if they are few."""
    return SMALL_COMMIT_SECONDS if merged else SMALL_COMMIT_UNMERGED_SECONDS
