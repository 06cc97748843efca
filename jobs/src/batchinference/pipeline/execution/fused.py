"""Runs jobs without actor pools: each Ray task reads, computes and commits a part of the input.

Rows do not leave the process that reads them. A task commits its rows in chunks, so that its memory
is bounded and little work is lost if its process dies.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import ray

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.manifest import Manifest
from batchinference.pipeline.commit.row_coverage import RowSet, resolve_overlaps
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.memory import peak_memory
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner
from batchinference.pipeline.input.base import ReadRows
from batchinference.pipeline.input.planning import FILE_BYTES
from batchinference.pipeline.ray_compat.cluster import (
    has_flag,
    retries_of_this_task,
    set_flag,
)
from batchinference.pipeline.row_batch import RowBatch, merged, resized
from batchinference.plan import Stage
from batchinference.spec.lifecycle import DRAIN_SECONDS

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
"""Maximum seconds until the driver, or a task between two batches, notices a request to stop."""
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
        self.next = math.ceil(FIRST_ROWS / self._unit) * self._unit
        """The number of rows of the next batch."""

    def took(self, rows: int, seconds: float) -> None:
        """Record how long a batch took."""
        if not rows:
            return
        most = self.next * MAX_GROWTH
        wanted = min(most, rows * BATCH_SECONDS / max(seconds, 1e-9))
        self.next = max(self._unit, int(wanted) // self._unit * self._unit)


@lru_cache(maxsize=16)
def _stages_of_process(pickled: bytes) -> list[StageRunner]:
    stages, errors = pickle.loads(pickled)  # noqa: S301 - our own bytes, from the driver
    return [StageRunner(stage, errors) for stage in stages]


@dataclass(frozen=True)
class StopRequest:
    """A request to the tasks of a run to stop, through the control store of the Ray cluster.

    Tasks are not cancelled with `ray.cancel`: Ray 2.60 aborts the driver if a task is cancelled
    just as it starts or ends ("Tried to complete task that was not pending")."""

    run: str

    @property
    def _name(self) -> str:
        return f"batchinference-stop-{self.run}"

    def send(self) -> None:
        set_flag(self._name)

    def is_sent(self) -> bool:
        return has_flag(self._name)

    @contextmanager
    def watched(self) -> Iterator[Event]:
        """Yield an event that is set soon after the request was sent. If the block does not end
        within DRAIN_SECONDS after that, it is stuck in the user's code, and the process exits."""
        requested, ended = Event(), Event()

        def watch() -> None:
            while not ended.wait(POLL_SECONDS):
                if self.is_sent():
                    requested.set()
                    if not ended.wait(DRAIN_SECONDS):
                        os._exit(1)
                    return

        Thread(target=watch, name="stop", daemon=True).start()
        try:
            yield requested
        finally:
            ended.set()


@dataclass(frozen=True)
class FusedTask:
    """Reads a part of the input, runs all steps and commits the results.

    `rows_per_commit` is the number of input rows that are enough for a file."""

    number: int
    read: ReadRows
    steps: Steps
    committer: Committer
    rows_per_commit: int
    stop: StopRequest

    def __call__(self, *, retried: bool) -> None:
        """Run the task. `retried` says that another execution of it may have committed rows."""
        attempt = self.committer.attempt
        if self.stop.is_sent():
            return
        attempt.check_lease()
        earlier = attempt.manifests(self.number) if retried else []
        with self.stop.watched() as stopping, ThreadPoolExecutor(1) as pool:
            number = max((manifest.number + 1 for manifest in earlier), default=0)
            commits = ChunkCommits(self, pool, number)
            for batch in self.steps.applied_to(_without_committed(self.read(), earlier)):
                commits.add(batch)
                if stopping.is_set():
                    commits.flush()  # before the reader ends, which may wait for requests
                    break
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

    def __init__(self, task: FusedTask, pool: ThreadPoolExecutor, number: int) -> None:
        self._task, self._pool = task, pool
        self._number = number
        """The number of the next commit."""
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
        self._under_way = self._pool.submit(committer.put, chunk, self._task.number, self._number)
        self._number += 1
        self._start_chunk()

    def wait(self) -> None:
        """Wait for the commit under way. Raises its error."""
        if self._under_way is not None:
            self._under_way.result()


@dataclass(frozen=True)
class FusedExecution:
    """Runs fused tasks on Ray. At most `at_once` tasks are submitted at the same time."""

    tasks: list[FusedTask]
    stop: StopRequest
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
            self.stop.send()
            while running:
                running = self._advanced(running)
        except BaseException:
            self.stop.send()
            # those that do not end in time are killed together with the driver
            ray.wait(running, num_returns=len(running), timeout=ABORT_SECONDS)
            raise

    def _advanced(self, running: list[Any]) -> list[Any]:
        """Return the tasks that are still running after a moment."""
        if self.control.given_up:
            raise JobFailure("given up")
        done, left = ray.wait(running, timeout=POLL_SECONDS)
        ray.get(done)
        return left


def _run(task: FusedTask) -> None:
    task(retried=retries_of_this_task() > 0)
