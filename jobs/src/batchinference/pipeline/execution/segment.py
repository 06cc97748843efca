"""A segment: adjacent steps that one process runs over batches of rows.

The input of a segment is a reader (`Segment.of_read`) or a block (`Segment.of_block`). Its results
are batches, which are committed or passed on as blocks. Tasks and actors run segments in the same
way. They compute texts in windows, and cut batches that take about BATCH_SECONDS. They end when the
job stops, and isolate rows that may kill the process."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Condition, Event, Lock, get_ident
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from batchinference.pipeline.errors import JobFailure, WorkerCrashed
from batchinference.pipeline.execution.batch_size import (
    BATCH_SECONDS,
    FIRST_ROWS,
    UNLIMITED,
    WINDOW_BATCHES,
    BatchRows,
    BatchSize,
)
from batchinference.pipeline.execution.crash_isolation import CRASHED, NO_DEATHS, Isolation
from batchinference.pipeline.execution.crash_notes import (
    nodes_of_group,
    predecessor_deaths,
    storing_notes,
)
from batchinference.pipeline.execution.length_sorting import (
    columns_of_first_model,
    longest_first,
    text_columns,
)
from batchinference.pipeline.execution.step_runner import (
    STOP_SECONDS,
    ErrorHandling,
    SegmentRunner,
)
from batchinference.pipeline.input.planning import FILE_BYTES
from batchinference.pipeline.ray_compat import node_of_this_process, replaces_dead_process
from batchinference.pipeline.row_batch import RowBatch, merged, resized
from batchinference.pipeline.steps.result_cache import flush_caches

if TYPE_CHECKING:
    from batchinference.plan import Plan, Stage

BATCH_BYTES, MAX_BATCH_BYTES = 16 << 20, 128 << 20
"""Maximum bytes of a batch: without a step that has a batch size, and with one."""
WINDOW_SECONDS = 2 * WINDOW_BATCHES * BATCH_SECONDS
"""The results of a window that takes more seconds are yielded in parts."""
_Run = Callable[[Iterator[RowBatch], Event], Iterator[RowBatch]]


@dataclass(frozen=True)
class Segment:
    """Steps that a process loads once, for all its tasks or for all calls of an actor."""

    pickled: bytes
    """The stages and the ErrorHandling, as pickled bytes."""
    run_id: str = ""
    """The ID of the pass (`Lease.run`). A process may serve several passes."""
    batch_rows: int = 0
    """The largest batch size of a step; 0 if no step has one."""
    texts: tuple[str, ...] = ()
    """The columns whose texts determine the order of the rows in a window."""
    has_stages: bool = True
    concurrent: bool = False
    """Whether several threads run the segment. They share the models, but not the measurements."""
    isolation: Isolation = NO_DEATHS
    """The suspected and crashed rows at the beginning of this pass."""
    batch_bytes: int = BATCH_BYTES
    """Maximum size of a batch if no step has a batch size."""
    first_rows: int = FIRST_ROWS
    """The rows of the first batch."""

    @classmethod
    def of(
        cls,
        stages: Sequence[Stage],
        errors: ErrorHandling,
        run_id: str = "",
        isolation: Isolation = NO_DEATHS,
    ) -> Segment:
        """Return the segment of these stages."""
        sizes = (BatchSize.of(step).size for stage in stages for step in stage.steps)
        largest = max((size for size in sizes if size < UNLIMITED), default=0)
        texts = stages[0].padded_texts if stages else ()
        pickled = pickle.dumps((list(stages), errors))
        return cls(pickled, run_id, largest, texts, bool(stages), isolation=isolation)

    @classmethod
    def of_job(
        cls, plan: Plan, errors: ErrorHandling, run_id: str = "", isolation: Isolation = NO_DEATHS
    ) -> Segment:
        """Return all steps of a job as one segment. Each step has a thread per CPU of the task."""
        stages = [replace(stage, cpus=plan.task_cpus) for stage in plan.stages]
        texts = columns_of_first_model([step for stage in stages for step in stage.steps])
        return replace(cls.of(stages, errors, run_id, isolation), texts=texts)

    def load(self) -> SegmentRunner:
        """Return the runner of this process, or thread if `concurrent`. Raises JobFailure."""
        return _LOADED.runner(self.run_id, self.pickled, get_ident() if self.concurrent else 0)

    def of_read(self, read: Iterator[RowBatch], stopping: Event) -> Iterator[RowBatch]:
        """Yield the results of the rows from a reader. After `stopping` is set, results do not wait
        for a full window."""
        return self._of_batches(read, stopping, self._in_windows)

    def of_block(self, batch: RowBatch, stopping: Event) -> Iterator[RowBatch]:
        """Yield the results of a block like `of_read`. Each is in block order, except suspects."""
        return self._of_batches(iter([batch]), stopping, self._of_blocks)

    def _of_batches(
        self, batches: Iterator[RowBatch], stopping: Event, run: _Run
    ) -> Iterator[RowBatch]:
        isolation = self.current_isolation()
        with self._note_context():
            if not isolation:
                yield from run(batches, stopping)
                return
            for batch in batches:
                yield from self._isolated(batch, isolation, stopping, run)

    def take_notes(self) -> tuple[tuple[str, str], ...]:
        """Return the measurements of the steps in this process since the last call, as notes. Also
        flush the caches, because the process may end afterwards."""
        flush_caches()
        return self.load().take_notes()

    def current_isolation(self) -> Isolation:
        """Return the isolation of this pass, with the deaths of the processes that this process
        replaces. Raises JobFailure if adjacent rows have crashed."""
        isolation = self.isolation
        if self.replaces_process():
            isolation = isolation.after(predecessor_deaths(self.run_id))
        if isolation.unused is not None and isolation.suspected_nodes:
            isolation = replace(isolation, nodes=nodes_of_group())
        if isolation.is_systemic:
            raise JobFailure(
                f"{CRASHED}. This happened to adjacent rows, so the cause is not their values but, "
                "for example, a broken device or the code of a step"
            )
        return isolation

    def replaces_process(self) -> bool:
        """Return whether this process replaces a dead one, and may therefore die as well."""
        return bool(self.run_id) and replaces_dead_process()

    def _note_context(self, *, always: bool = False) -> AbstractContextManager[None]:
        """Return a context in which steps store notes of the rows that they compute, if needed."""
        notes = always or self.replaces_process()
        return storing_notes(self.run_id) if notes and self.run_id else nullcontext()

    def _isolated(
        self, batch: RowBatch, isolation: Isolation, stopping: Event, run: _Run
    ) -> Iterator[RowBatch]:
        """Yield the results of suspects, computed in small parts, and then of the other rows.
        Crashed rows become failed rows, and rows for other nodes are left out. No further part
        begins after `stopping` is set."""
        batch = self._without_crashed(batch, isolation)
        batch = isolation.without_deferred(batch, node_of_this_process())
        suspects, others = isolation.divided(batch)
        if suspects:
            yield from _gathered(self._alone(suspects, stopping), stopping)
            if stopping.is_set():
                return
        yield from run(iter([others]), stopping)

    def _alone(self, parts: Iterable[RowBatch], stopping: Event) -> Iterator[RowBatch]:
        """Yield the results of suspects. Meanwhile, no other thread computes. Steps store notes of
        the rows that they compute, and do not learn batch sizes."""
        exclusive = _COMPUTING.exclusive() if self.concurrent else nullcontext()
        with exclusive, self._note_context(always=True), self.load().without_learning():
            for part in parts:
                if stopping.is_set():
                    return
                yield from self._run_all(part, stopping)

    def _without_crashed(self, batch: RowBatch, isolation: Isolation) -> RowBatch:
        """Return the batch with the crashed rows as failed rows."""
        crashed = isolation.crashed_rows(batch)
        if not crashed:
            return batch
        _, errors = _unpickled(self.pickled)
        failed = [
            row
            for index, note in crashed.items()
            for row in errors.failed_rows(note.step, batch, {index: WorkerCrashed(CRASHED)})
        ]
        remaining = np.setdiff1d(np.arange(len(batch.ids)), [*crashed])
        return batch.derived(batch.table.take(pa.array(remaining)), remaining, failed)

    def _in_windows(self, read: Iterator[RowBatch], stopping: Event) -> Iterator[RowBatch]:
        """Yield the results of rows from a reader. If the first model reads texts, a window is
        computed with the longest texts first. Each batch then has texts of similar lengths and
        needs little padding. The results of a window are put back into input order. If a window is
        yielded in parts, each part is ordered by itself."""
        rows = BatchRows(self.batch_rows, self.first_rows)

        def wanted() -> int:
            return 1 if stopping.is_set() else rows.window  # a stop does not wait for a window

        size = MAX_BATCH_BYTES if self.batch_rows else self.batch_bytes
        for window in resized(self._detect_texts(read, rows), wanted, size):
            self.load()  # loading is not timed as part of a batch
            for results in self._computed(window, rows, stopping):
                yield results.in_order_of(window.ids)

    def _of_blocks(self, batches: Iterator[RowBatch], stopping: Event) -> Iterator[RowBatch]:
        """Yield the results of blocks. Each block is a window, because its size is suitable."""
        self.load()
        rows = _batch_rows_of_process(self.pickled, self.batch_rows)
        for batch in batches:
            with _COMPUTING.shared() if self.concurrent else nullcontext():
                for results in self._computed(batch, rows, stopping):
                    yield results.in_order_of(batch.ids)

    def _computed(self, window: RowBatch, rows: BatchRows, stopping: Event) -> Iterator[RowBatch]:
        """Return the results of a window, longest texts first."""
        ordered = longest_first(window, self.texts)
        return _gathered(self._in_batches(ordered, rows, stopping), stopping)

    def _in_batches(self, window: RowBatch, rows: BatchRows, stopping: Event) -> Iterator[RowBatch]:
        """Yield the results of a window. After `stopping` is set, remaining rows are left out if
        they would take more than STOP_SECONDS."""
        remaining = len(window.ids)
        for batch, inputs in rows.cut(window):
            began, waited = time.monotonic(), 0.0
            for result in self._run_all(batch, stopping):
                paused = time.monotonic()
                yield result
                waited += time.monotonic() - paused  # the consumer may commit meanwhile
            seconds = time.monotonic() - began - waited
            remaining -= len(batch.ids)
            rows.record_batch(inputs, seconds)
            if stopping.is_set() and remaining * seconds > STOP_SECONDS * len(batch.ids):
                return

    def _detect_texts(self, batches: Iterator[RowBatch], rows: BatchRows) -> Iterator[RowBatch]:
        """Yield the batches, and record in `rows` whether they have texts."""
        for batch in batches:
            rows.have_texts |= bool(text_columns(batch.table, self.texts))
            yield batch

    def _run_all(self, batch: RowBatch, stopping: Event) -> Iterator[RowBatch]:
        return self.load()(batch, stopping)


def _gathered(results: Iterator[RowBatch], stopping: Event) -> Iterator[RowBatch]:
    """Yield results, merged to batches. A batch ends when it has FILE_BYTES, after WINDOW_SECONDS,
    and before an error. After `stopping` is set, each result is a batch."""
    done, size, since = list[RowBatch](), 0, time.monotonic()
    try:
        for result in results:
            done.append(result)
            size += result.nbytes
            late = time.monotonic() - since >= WINDOW_SECONDS
            if late or size >= FILE_BYTES or stopping.is_set():
                yield merged(done)
                done, size, since = [], 0, time.monotonic()
    except Exception:
        yield from _merged(done)
        raise
    yield from _merged(done)


def _merged(results: list[RowBatch]) -> Iterator[RowBatch]:
    if results:
        yield merged(results)


class LoadedSegments:
    """The segments that this process has loaded for one pass. The next pass drops them before it
    loads its own, because models are large."""

    def __init__(self) -> None:
        self._run = ""
        self._runners: dict[tuple[bytes, int], SegmentRunner] = {}
        self._lock = Lock()

    def clear(self) -> None:
        """Drop all segments."""
        with self._lock:
            self._runners.clear()

    def runner(self, run: str, pickled: bytes, thread: int = 0) -> SegmentRunner:
        """Return the runner of a segment, and load it in the first call. `thread` is the ID of the
        thread if each thread has its own runner."""
        with self._lock:
            if (pickled, thread) not in self._runners:
                if run != self._run:
                    self._runners.clear()
                known = (runner for (key, _), runner in self._runners.items() if key == pickled)
                shared = next(known, None)
                new = shared.for_other_thread() if shared else _load(pickled)
                self._runners[pickled, thread] = new
            self._run = run
            return self._runners[pickled, thread]


class SharedLock:
    """Lets several threads compute at the same time, or one thread alone."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._shared = self._waiting = 0
        self._alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Wait for threads that compute alone or want to. Then compute next to other threads."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._alone or self._waiting))
            self._shared += 1
        try:
            yield
        finally:
            with self._changed:
                self._shared -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait until no other thread computes, and let none begin during the block. If the process
        dies, no other thread leaves a note."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not (self._alone or self._shared))
            self._waiting -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


_LOADED, _COMPUTING = LoadedSegments(), SharedLock()


def unload_stages() -> None:
    """Drop the segments of this process, so that their models end the processes that they started.
    Ray would kill these processes later, and the models would log an error."""
    _LOADED.clear()


def _load(pickled: bytes) -> SegmentRunner:
    stages, errors = _unpickled(pickled)
    if stages:  # tokenizers would start a thread for each CPU of the machine
        os.environ.setdefault("RAYON_NUM_THREADS", str(int(max(1, stages[0].cpus))))
    return SegmentRunner(stages, errors)


@lru_cache(maxsize=16)
def _batch_rows_of_process(_pickled: bytes, batch_rows: int) -> BatchRows:
    """Return the batch sizes for blocks of a segment. All calls of an actor share them."""
    return BatchRows(batch_rows)


@lru_cache(maxsize=1)
def _unpickled(pickled: bytes) -> tuple[list[Stage], ErrorHandling]:
    stages, errors = pickle.loads(pickled)  # noqa: S301 - our own bytes, from the driver
    return stages, errors
