"""Runs the command `batchinference` with one part of the product switched off, for ablation.py.

The environment variable ABLATION names the part. The part is replaced in the driver and in each
worker process, before its first task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline import job, row_batch
from batchinference.pipeline.commit import attempt, committer, snapshot
from batchinference.pipeline.execution import commit_tasks, length_sorting, segment, step_runner
from batchinference.pipeline.execution.step_runner import Part
from batchinference.pipeline.input import scan
from batchinference.pipeline.row_batch import NO_ROWS, RowBatch

PART = "ABLATION"
_run = commit_tasks._run


def without_row_ids() -> None:
    """Give all rows the same id, which takes no memory. Commits do not list their rows."""

    def derived(self: RowBatch, table: pa.Table, parents: np.ndarray, failed: Any) -> RowBatch:
        ids = np.broadcast_to(np.int64(0), table.num_rows)
        filtered = np.broadcast_to(np.int64(0), max(0, len(self.ids) - table.num_rows))
        return replace(self, table=table if table.num_rows else NO_ROWS, ids=ids, filtered=filtered)

    def same(file: int, first: int, count: int) -> np.ndarray:
        return np.broadcast_to(np.int64(0), count)

    def longest_first(batch: RowBatch, columns: tuple[str, ...]) -> RowBatch:
        lengths = length_sorting.text_lengths(batch.table, columns)
        return batch if lengths is None else batch.taken(np.argsort(-lengths))

    scan.consecutive_ids = same
    segment.longest_first = longest_first
    row_batch.RowBatch.derived = derived  # type: ignore[method-assign]
    row_batch.RowBatch.has_unique_ids = True  # type: ignore[assignment,method-assign]
    row_batch.RowBatch.in_order_of = lambda self, ids: self  # type: ignore[method-assign]
    committer.commit_groups = lambda batch: iter([batch])
    committer.row_ranges_of = lambda group: []
    committer.shares_of = lambda group: []
    _all_rows_count()


def without_error_handling() -> None:
    """Do not catch the error of a batch, and do not isolate the failed row."""

    def isolate(apply: Callable[..., Any], batch: pa.Table, start: int = 0) -> Iterator[Part]:
        yield Part(start, batch.num_rows, apply(batch))

    step_runner.isolate = isolate  # type: ignore[assignment]


def without_commits() -> None:
    """Let tasks write their data files without manifests."""

    def put(self: committer.Committer, batch: RowBatch, task: int, number: int = 0) -> None:
        if len(batch.ids):
            self._put_data(batch.table, task, [])

    committer.Committer.put = put  # type: ignore[method-assign]
    attempt.Attempt.remove_orphans = lambda self, entries: None  # type: ignore[method-assign]
    _all_rows_count()


def without_progress() -> None:
    """Do not count the committed rows in the driver while tasks run."""
    job.JobRun._observe = lambda self, run, executor: None  # type: ignore[method-assign]


def without_bucketing() -> None:
    """Compute texts in the order of the input."""
    segment.text_columns = lambda table, columns: []
    length_sorting.text_columns = lambda table, columns: []


def _all_rows_count() -> None:
    """Do not check for missing or repeated rows."""
    snapshot.resolve_overlaps = list
    snapshot.Snapshot.missing_rows = lambda self, *_: {}  # type: ignore[method-assign]


PARTS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "row ids": without_row_ids,
    "error handling": without_error_handling,
    "commits": without_commits,
    "progress": without_progress,
    "bucketing": without_bucketing,
}


@lru_cache(maxsize=1)
def switch_off() -> None:
    """Replace the part in this process."""
    PARTS[os.environ[PART]]()


def run_task(task: commit_tasks.CommitTask) -> None:
    """Run a task without the part."""
    switch_off()
    _run(task)


if __name__ == "__main__":
    import ablated  # workers import this module by its name

    from batchinference.cli.main import app

    ablated.switch_off()
    commit_tasks._run = ablated.run_task
    app()
