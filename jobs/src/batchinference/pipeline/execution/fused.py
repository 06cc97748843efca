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
from typing import TYPE_CHECKING, Any

import ray

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.manifest import Manifest
from batchinference.pipeline.commit.row_set import RowSet, resolve_overlaps
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.memory import peak_memory
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner
from batchinference.pipeline.input.base import ReadRows
from batchinference.pipeline.input.planning import FILE_BYTES
from batchinference.pipeline.ray_compat.cluster import retries_of_this_task
from batchinference.pipeline.row_batch import RowBatch, merged, resized
from batchinference.plan import Stage

if TYPE_CHECKING:
    from batchinference.pipeline.execution.control import ExecutionControl

BATCH_BYTES = 16 << 20
"""The largest batch that the steps get, unless a step has a batch size: then MAX_BATCH_BYTES."""
MAX_BATCH_BYTES = 128 << 20
FIRST_ROWS, MAX_GROWTH = 64, 8
BATCH_SECONDS = 1.0
"""Batches grow or shrink until they take this long. A slow step then commits in time, and a stop
loses little work."""
ABORT_SECONDS = 5.0
"""Seconds that the other tasks have to commit their rows after a task has failed."""
POLL_SECONDS = 0.5
"""Maximum seconds until a request to stop is noticed."""
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

    def applied_to(self, read: Iterator[RowBatch]) -> Iterator[RowBatch]:
        """Yield the results of the rows in batches."""
        rows = BatchRows(self.batch_rows)
        size = MAX_BATCH_BYTES if self.batch_rows else BATCH_BYTES
        for batch in resized(read, lambda: rows.next, size):
            began = time.monotonic()
            result = batch
            for stage in _stages_of_process(self.pickled):
                result = stage(result)
            rows.took(len(batch.ids), time.monotonic() - began)
            yield result


class BatchRows:
    """Finds the number of rows that take BATCH_SECONDS, as a multiple of a step's batch size."""

    def __init__(self, batch_rows: int) -> None:
        self._unit = max(1, batch_rows)
        self.next = max(self._unit, FIRST_ROWS)
        """The number of rows of the next batch."""

    def took(self, rows: int, seconds: float) -> None:
        """Record how long a batch took."""
        most = self.next * MAX_GROWTH
        wanted = min(most, rows * BATCH_SECONDS / max(seconds, 1e-9))
        self.next = max(self._unit, int(wanted) // self._unit * self._unit)


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
                for batch in self.steps.applied_to(_without_committed(self.read(), earlier)):
                    commits.add(batch)
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
        """Run the tasks until all rows are committed, or, if the job is draining, until running
        tasks have committed the rows that are complete. Raises the first failure of a task."""
        task: Any = ray.remote(**self.arguments)(_run).options(name=self.control.stage)
        waiting = iter(self.tasks)
        running: list[Any] = []
        try:
            while not self.control.draining:
                room = self.at_once - len(running)
                running += [task.remote(one) for one in itertools.islice(waiting, room)]
                if not running:
                    return
                running = self._advanced(running)
            _interrupt(running)
            while running:
                running = self._advanced(running)
        except BaseException:
            _abort(running)
            raise

    def _advanced(self, running: list[Any]) -> list[Any]:
        """Return the tasks that are still running after a moment."""
        if self.control.given_up:
            raise JobFailure("given up")
        done, left = ray.wait(running, timeout=POLL_SECONDS)
        for one in done:
            try:
                ray.get(one)
            except ray.exceptions.TaskCancelledError:
                if not self.control.draining:
                    raise
        return left


def _abort(running: list[Any]) -> None:
    """Interrupt running tasks and wait until they have ended, but not long. Processes that do not
    end are killed together with the driver: Ray aborts the driver if a task ends just as it is
    cancelled with force."""
    _interrupt(running)
    if running:
        ray.wait(running, num_returns=len(running), timeout=ABORT_SECONDS)


def _interrupt(running: list[Any]) -> None:
    """Interrupt running tasks, which then commit the rows that are complete. Tasks that have not
    started do not start."""
    for one in running:
        ray.cancel(one)


def _run(task: FusedTask) -> None:
    task(retried=retries_of_this_task() > 0)
