"""Runs jobs without actor pools: each Ray task reads, computes and commits a part of the input.

Rows do not leave the process that reads them. A task commits its rows in chunks, so that its memory
is bounded and little work is lost if its process dies.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import ray

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.manifest import Manifest
from batchinference.pipeline.commit.row_set import RowSet, resolve_overlaps
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.control import ExecutionControl
from batchinference.pipeline.execution.memory import peak_memory
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner
from batchinference.pipeline.input.base import ReadRows
from batchinference.pipeline.input.planning import FILE_BYTES
from batchinference.pipeline.ray_compat.cluster import retries_of_this_task
from batchinference.pipeline.row_batch import RowBatch, coalesced, merged
from batchinference.plan import Stage

BATCH_BYTES = 16 << 20
"""Steps get batches of about this size, or larger ones if a step has a larger batch size."""
MAX_BATCH_BYTES = 128 << 20
COMMIT_SECONDS = 30.0
"""A task commits at least this often, as soon as it has enough rows for a file."""


@dataclass(frozen=True)
class Steps:
    """The stages of a job, which each worker process loads once for all its tasks."""

    pickled: bytes
    batch_rows: int
    """The largest batch size of a step; 0 if no step has one."""

    @classmethod
    def of(cls, stages: tuple[Stage, ...], errors: ErrorHandling) -> Steps:
        sizes = (step.batch_size for stage in stages for step in stage.steps)
        largest = max((size for size in sizes if isinstance(size, int)), default=0)
        return cls(pickle.dumps((stages, errors)), largest)

    def batches(self, read: Iterator[RowBatch]) -> Iterator[RowBatch]:
        """Yield the rows in batches for the steps."""
        if self.batch_rows:
            return coalesced(read, self.batch_rows, MAX_BATCH_BYTES)
        return coalesced(read, 1 << 40, BATCH_BYTES)

    def __call__(self, batch: RowBatch) -> RowBatch:
        for stage in _stages_of_process(self.pickled):
            batch = stage(batch)
        return batch


@lru_cache(maxsize=16)
def _stages_of_process(pickled: bytes) -> list[StageRunner]:
    stages, errors = pickle.loads(pickled)  # noqa: S301 - our own bytes, from the driver
    return [StageRunner(stage, errors) for stage in stages]


@dataclass(frozen=True)
class FusedTask:
    """Reads a part of the input, runs all steps and commits the results.

    `rows_per_commit` is the number of input rows that are enough for a file."""

    number: int
    read: ReadRows
    steps: Steps
    committer: Committer
    rows_per_commit: int

    def __call__(self, *, retried: bool) -> None:
        """Run the task. `retried` says that another execution of it may have committed rows."""
        attempt = self.committer.attempt
        attempt.check_lease()
        earlier = attempt.manifests(self.number) if retried else []
        with ThreadPoolExecutor(1) as pool:
            commits = ChunkCommits(self, pool, len(earlier))
            try:
                for batch in self.steps.batches(_without_committed(self.read(), earlier)):
                    commits.add(self.steps(batch))
            except KeyboardInterrupt:
                pass  # the job is stopping: the rows that are complete are committed
            commits.flush()
            commits.wait()


def _without_committed(read: Iterator[RowBatch], earlier: list[Manifest]) -> Iterator[RowBatch]:
    """Yield the rows that no earlier commit of the task holds."""
    if not earlier:
        yield from read
        return
    entries = [entry for manifest in earlier for entry in manifest.entries]
    held = RowSet.of(resolve_overlaps(entries))
    for batch in read:
        yield batch.only(batch.source[~held.holds(batch.source)])


class ChunkCommits:
    """Collects the rows of a task and commits them in chunks. One commit runs in a thread while the
    next rows are computed."""

    def __init__(self, task: FusedTask, pool: ThreadPoolExecutor, made: int) -> None:
        self._task, self._pool = task, pool
        self._made = made
        """The number of commits of the task so far."""
        self._under_way: Future[None] | None = None
        self._start_chunk()

    def _start_chunk(self) -> None:
        self._batches: list[RowBatch] = []
        self._rows = self._bytes = 0
        self._since = time.monotonic()

    def add(self, batch: RowBatch) -> None:
        """Add rows. Commit the chunk if it is large enough."""
        self._batches.append(batch)
        self._rows += len(batch.source)
        self._bytes += batch.nbytes
        late = time.monotonic() - self._since >= COMMIT_SECONDS
        if self._bytes >= FILE_BYTES or (late and self._rows >= self._task.rows_per_commit):
            self.flush()

    def flush(self) -> None:
        """Begin to commit the chunk, after the commit of the previous one."""
        self.wait()
        if not self._batches:
            return
        chunk, committer = merged(self._batches), self._task.committer
        notes = peak_memory(committer.attempt.lease.run).notes("write")
        chunk = replace(chunk, notes=(*chunk.notes, *notes))
        self._under_way = self._pool.submit(committer.put, chunk, self._task.number, self._made)
        self._made += 1
        self._start_chunk()

    def wait(self) -> None:
        """Wait for the commit under way. Raises its error."""
        if self._under_way is not None:
            self._under_way.result()


@dataclass(frozen=True)
class FusedExecution:
    """Runs fused tasks on Ray. At most `at_once` tasks are submitted at the same time."""

    tasks: list[FusedTask]
    arguments: dict[str, Any]
    at_once: int
    control: ExecutionControl

    def run(self) -> None:
        """Run the tasks until all rows are committed. Raises the first failure of a task."""
        task: Any = ray.remote(**self.arguments)(_run)
        waiting = iter(self.tasks)
        running: list[Any] = []
        try:
            while True:
                room = self.at_once - len(running)
                running += [task.remote(one) for one in itertools.islice(waiting, room)]
                if not running or self.control.draining:
                    break
                running = self._advanced(running)
            for one in running:
                ray.cancel(one)  # interrupts the task, which then commits its chunk
            while running:
                running = self._advanced(running)
        except BaseException:
            for one in running:
                ray.cancel(one, force=True)
            raise

    def _advanced(self, running: list[Any]) -> list[Any]:
        """Return the tasks that are still running after a moment."""
        if self.control.given_up:
            raise JobFailure("given up")
        done, left = ray.wait(running, timeout=0.5)
        for one in done:
            try:
                ray.get(one)
            except ray.exceptions.TaskCancelledError:
                if not self.control.draining:
                    raise
        return left


def _run(task: FusedTask) -> None:
    task(retried=retries_of_this_task() > 0)
