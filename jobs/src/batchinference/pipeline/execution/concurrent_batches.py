"""Computes several batches at the same time in one actor, whose model accepts rows at any time.

The next batch begins as soon as the number of rows without an answer is low enough. No batch waits
for the slowest row of another batch. Ray Data runs the batches of one call one by one. Therefore
each call gets a complete block, and this module cuts the block into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Event
from typing import Any

import pyarrow as pa

from batchinference.pipeline.arrow import concat
from batchinference.pipeline.errors import EngineDied
from batchinference.pipeline.execution.block_codec import encode
from batchinference.pipeline.execution.prefix_order import in_order_of, prefix_order
from batchinference.pipeline.execution.report_notes import retry_notes
from batchinference.pipeline.ray_compat import replaces_dead_process
from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.rows_in_flight import IN_FLIGHT, RowsInFlight
from batchinference.plan import Stage
from batchinference.spec.models.base import MODEL_BATCH_SIZE

Run = Callable[[pa.Table], Iterator[pa.Table]]
"""Runs the steps of a stage over a block. Several threads may call it at the same time."""
_Cut = Callable[[], pa.Table]
"""Cuts one batch out of a block."""
_Batch = Future[list[pa.Table]]
"""The future results of a batch. `result()` raises _Failed if a step fails."""
MODEL_CALLS = 3
"""Concurrent calls of an actor: one computes, one prepares its batch, and one passes on results."""
MIN_CALLS, MAX_CALLS = 16, 64
"""Limits of the concurrent calls of an actor that forms its batches from the rows of all calls."""
MAX_BATCHES = 1024
"""Maximum concurrent batches of an actor, each in a thread."""
SUSPECTED_BATCHES = 64
"""Maximum concurrent batches in a process that replaces a dead one. If the new process dies as
well, the rows of all its batches become suspects (see `crash_isolation`)."""
PART_SECONDS = 4.0
"""A call passes on finished batches in parts, each after this many seconds. When a job stops, a
call waits for answers for up to two such periods. Enough time remains to commit the last part."""
END_SECONDS = 1.0
"""Maximum seconds to wait for the end of batches that are given up."""


def concurrency_of_actors(stage: Stage, blocks: int = MIN_CALLS) -> dict[str, Any]:
    """Return the arguments of Ray's actor pool that set the concurrent calls of a stage. An actor
    gets as many blocks as it has concurrent calls. Then no block waits for a busy actor while
    another actor is idle. A stage that batches itself has about `blocks` calls."""
    if stage.model is None:
        return {}
    calls = max(MIN_CALLS, min(blocks, MAX_CALLS)) if stage.batches_itself else MODEL_CALLS
    return {
        "max_tasks_in_flight_per_actor": calls,
        "max_concurrent_calls_per_actor": calls,
        "enable_true_multi_threading": True,
    }


class ConcurrentBatches:
    """Runs the steps of a stage over blocks, in batches. Batches of one or several calls run at the
    same time. No batch begins after `stopping` is set. A batch that fails sets `stopping`, because
    its error ends the pass."""

    def __init__(
        self,
        stage: Stage,
        run: Run,
        stopping: Event,
        part_seconds: float = PART_SECONDS,
        in_flight: RowsInFlight = IN_FLIGHT,
    ) -> None:
        self._part_seconds, self._in_flight = part_seconds, in_flight
        self._name, self._rows = stage.name, stage.batch_size or MODEL_BATCH_SIZE
        self._prompt = stage.model.prefix_columns if stage.model else ()
        self._run_block, self._stopping = run, stopping
        self._waiting = ThreadPoolExecutor(1)
        """A single thread, which begins batches in the order in which they were submitted."""
        batches = SUSPECTED_BATCHES if replaces_dead_process() else MAX_BATCHES
        self._threads = ThreadPoolExecutor(batches)

    def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
        """Yield the results of a block in parts. The rows of each part are in block order. Raises
        the first error, after all results: batches that are computed end as at a stop. Only
        EngineDied is raised at once, because the process must end."""
        if notes := retry_notes(self._name):  # here, because threads do not know the task of Ray
            yield encode(RowBatch(notes=notes))
        order = prefix_order(block, self._prompt)
        running = [self._submitted(*batch) for batch in self._cuts(block, order)]
        first = None
        try:
            for part in self._parts(running):
                tables, error = _results(part)
                if tables:
                    made = concat(tables)
                    yield made if order is None else in_order_of(block, made)
                if isinstance(error, EngineDied):
                    raise error
                first = first or error
            if first is not None:
                raise first
        finally:
            for batch in running:
                batch.cancel()

    def _parts(self, running: list[_Batch]) -> Iterator[list[_Batch]]:
        """Yield lists of finished batches, every `part_seconds` and after an error. After
        `stopping` is set, only one more list follows the current one. Then all batches of the
        process are given up, and end with the rows that have an answer."""
        stops = False
        while running and not stops:
            stops = self._stopping.is_set()
            done = wait(running, self._part_seconds, FIRST_EXCEPTION).done
            if stops and len(done) < len(running):
                self._in_flight.give_up()
                done = wait(running, END_SECONDS, FIRST_EXCEPTION).done
            yield [batch for batch in running if batch in done]
            running = [batch for batch in running if batch not in done]

    def _cuts(self, block: pa.Table, order: pa.Array | None) -> Iterator[tuple[_Cut, int]]:
        """Yield for each batch a function that cuts the batch out of the block, and its number of
        rows. Rows are thus copied only when their batch begins."""
        for start in range(0, block.num_rows, self._rows):
            rows = min(self._rows, block.num_rows - start)
            if order is None:
                yield partial(block.slice, start, rows), rows
            else:
                yield partial(block.take, order.slice(start, rows)), rows

    def _submitted(self, cut: _Cut, rows: int) -> _Batch:
        """Return the future results of a batch, which begins after all earlier batches."""
        results: _Batch = Future()
        self._waiting.submit(self._begin, cut, rows, results)
        return results

    def _begin(self, cut: _Cut, rows: int, results: _Batch) -> None:
        if results.cancelled():
            return
        self._in_flight.begin(rows)
        self._threads.submit(self._compute, cut, rows, results)

    def _compute(self, cut: _Cut, rows: int, results: _Batch) -> None:
        with self._in_flight.batch(rows):
            if not results.set_running_or_notify_cancel():
                return
            try:
                results.set_result(self._run(cut()))
            except BaseException as error:  # noqa: BLE001 - the call raises it
                results.set_exception(error)

    def _run(self, batch: pa.Table) -> list[pa.Table]:
        """Return the results of a batch. Raises _Failed if a step fails."""
        if self._stopping.is_set():
            return []
        done: list[pa.Table] = []
        try:
            done.extend(self._run_block(batch))
        except Exception as error:
            if not isinstance(error, EngineDied):  # after it, Ray repeats the calls of the process
                self._stopping.set()
            raise _Failed(done, error) from error
        return done


class _Failed(Exception):
    """A batch has failed. Holds the results before the error, and the error."""

    def __init__(self, done: list[pa.Table], error: Exception) -> None:
        super().__init__(str(error))
        self.done, self.error = done, error


def _results(batches: list[_Batch]) -> tuple[list[pa.Table], Exception | None]:
    """Return the results of finished batches, and the first error."""
    tables, first = list[pa.Table](), None
    for batch in batches:
        try:
            tables += batch.result()
        except _Failed as failed:
            tables += failed.done
            first = first or failed.error
    return tables, first
