"""Computes the number of tasks of a single segment, and how often they commit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from batchinference.pipeline.input.planning import MAX_TASKS, MIN_BLOCK_ROWS, SMALL_FILE_ROWS

MIN_CPU_TASKS = 4
"""Minimum number of tasks for each task that the CPUs can run, so that all CPUs finish at about the
same time. There are fewer tasks if the input has few rows or cannot be divided."""
LARGE_TASK_ROWS, MIN_LARGE_TASKS = 2048, 3
"""Rows of a large task, and minimum number of large tasks for each task that the CPUs can run."""
FULL_FILES = 4
"""Minimum number of files of `rowsPerFile` rows that a task writes before a smaller last one."""
SMALL_COMMIT_SECONDS, SMALL_COMMIT_UNMERGED_SECONDS = 60.0, 600.0
"""Seconds after which a task commits the rows that it has, even if they are few. The second number
applies if small output files are never merged."""


@dataclass(frozen=True)
class TaskSizing:
    """Computes the number of tasks. `at_once` is the number of tasks that the CPUs can run. `parts`
    is the maximum number of parts of the input; None if it can be divided at any row.
    `prefer_large` says whether tasks should have many rows, and `merged` whether small output files
    are merged at the end of the job. `rows_per_file` is the configured number, if any."""

    at_once: float
    parts: int | None
    prefer_large: bool
    merged: bool
    rows_per_file: int | None = None

    def tasks(self, blocks: int, rows: float) -> int:
        """Return the number of tasks for `rows` input rows that are planned as `blocks` blocks:
        more if the CPUs need more tasks, and fewer if tasks should have many rows."""
        tasks = max(blocks, self._for_cpus(rows))
        if not self.prefer_large:
            return tasks
        large = max(LARGE_TASK_ROWS, FULL_FILES * (self.rows_per_file or 0))
        return min(tasks, math.ceil(max(rows / large, MIN_LARGE_TASKS * self.at_once)))

    def _for_cpus(self, rows: float) -> int:
        """Return the number of tasks that keeps the CPUs busy, without tasks of very few rows."""
        by_rows = rows // (MIN_BLOCK_ROWS if self.merged else SMALL_FILE_ROWS)
        wanted = min(MIN_CPU_TASKS * self.at_once, by_rows, MAX_TASKS)
        return int(wanted if self.parts is None else min(wanted, self.parts))


def small_commit_seconds(*, merged: bool) -> float:
    """Return the seconds after which a task commits the rows that it has, even if they are few."""
    return SMALL_COMMIT_SECONDS if merged else SMALL_COMMIT_UNMERGED_SECONDS
