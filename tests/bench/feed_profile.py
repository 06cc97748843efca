"""Shows where the time of the feed of an actor pool goes.

The job runs in one process: it calls what its tasks and actors call, with blocks and batches of the
same sizes, and copies the blocks into Ray's object store and from it. Each second counts for one
part:

    load         models and code of steps
    read         reading, and decoding of files and images
    copy in      copies of blocks into the object store
    copy out     blocks from the object store, cut into batches
    conversion   batches for the model, and columns of its results
    model        the model, which also tokenizes
    bookkeeping  ids, failed rows, warnings, notes, and the codec of blocks
    write        files and manifests

In a real run these parts run in several processes. What it takes beyond its parts is waiting, and
Ray's scheduling.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import ray
from ray.data._internal.batcher import Batcher

from batchinference.pipeline import job
from batchinference.pipeline.arrow import concat
from batchinference.pipeline.execution import dataset, segment
from batchinference.pipeline.execution.chunk_commits import ChunkCommits
from batchinference.pipeline.execution.dataset import BlockCalls, BlockReader, DatasetExecution
from batchinference.pipeline.execution.executor import Executor
from batchinference.pipeline.execution.step_runner import StepRunner
from batchinference.pipeline.execution.stop_signals import StopSignal
from batchinference.pipeline.job import JobRun
from batchinference.pipeline.steps.user_code import MapBatches
from batchinference.plan import plan_for_machine
from batchinference.spec import parse
from support.documents.minimal import Document

PARTS = ("load", "read", "copy in", "copy out", "conversion", "model", "bookkeeping", "write")


@dataclass
class PartTimes:
    """The seconds of each part. A part that begins within another one interrupts it."""

    now: Callable[[], float] = time.perf_counter
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _running: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of the block for this part."""
        self._switch()
        self._running.append(name)
        try:
            yield
        finally:
            self._switch()
            self._running.pop()

    def _switch(self) -> None:
        now = self.now()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose calls count for this part."""

        def call(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return function(*arguments, **named)

        return call

    def iterated(self, name: str, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items. The time in which they are made counts for this part."""
        while True:
            with self.part(name):
                result = next(items, self)
            if result is self:
                return
            yield result

    def lines(self, rows: int) -> list[str]:
        """Return a line for each part: its microseconds per row, and its share."""
        total = sum(self.seconds.values())
        return [
            f"  {name:12} {self.seconds[name] / rows * 1e6:9.2f} us per row "
            f"{self.seconds[name] / total:5.0%}"
            for name in PARTS
        ]


TIMES = PartTimes()


class OneProcess(Executor):
    """Runs the operators of a pass one after the other."""

    def run(self) -> None:
        prepared = self._prepared
        tasks = prepared.input.read_tasks(prepared.sizing.read_tasks, prepared.missing)
        windows = self._window_limits(prepared.share)
        target = self._dataset(tasks, len(tasks), windows, reads_run_steps=True)
        with TIMES.part("bookkeeping"):
            self._write(target, self._blocks(target))

    def _blocks(self, target: DatasetExecution) -> Iterator[pa.Table]:
        """Yield the blocks before the write tasks."""
        first, between, _ = target._divided_stages()
        readers = (BlockReader(task, target._segment(first)) for task in target.tasks)
        blocks = (block for read in readers for block in TIMES.iterated("read", read()))
        for stage in between:
            calls = BlockCalls(stage.name, target._segment([stage]), Event())
            blocks = _called(calls, _stored(blocks), target._rows_at_once(stage, 1))
        return _stored(blocks)

    def _write(self, target: DatasetExecution, blocks: Iterator[pa.Table]) -> None:
        sink, waiting, task = target.sink(target._divided_stages()[2]), list[pa.Table](), 0
        for block in blocks:
            waiting.append(block)
            if sum(map(len, waiting)) >= sink.min_rows_per_write:
                sink.write(waiting, SimpleNamespace(task_idx=task))
                waiting, task = [], task + 1
        sink.write(waiting, SimpleNamespace(task_idx=task))


def _called(calls: BlockCalls, blocks: Iterator[pa.Table], rows: int | None) -> Iterator[pa.Table]:
    """Yield the block that an actor returns for each block, after calls with up to `rows` rows."""
    for block in blocks:
        done = [result for batch in _cut(block, rows) for result in calls(batch)]
        with TIMES.part("copy in"):
            merged = concat(done)
        yield merged


def _stored(blocks: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Copy blocks into the object store, and yield them from there."""
    for block in blocks:
        with TIMES.part("copy in"):
            stored = ray.put(block)
        with TIMES.part("copy out"):
            result = ray.get(stored)
        yield result


def _cut(block: pa.Table, rows: int | None) -> Iterator[pa.Table]:
    """Yield the batches of a block, cut as Ray Data does it."""
    batcher = Batcher(rows, ensure_copy=False)
    batcher.add(block)
    while batcher.has_batch():
        with TIMES.part("copy out"):
            batch = batcher.next_batch()
        yield batch
    batcher.done_adding()
    while batcher.has_any():
        yield batcher.next_batch()


@contextmanager
def _timed_parts() -> Iterator[None]:
    """Time the parts within the code of the product."""
    new = StepRunner.__init__

    def timed_step(self: StepRunner, step: Any, transform: Any, *others: Any) -> None:
        new(self, step, transform, *others)
        name = "conversion" if isinstance(transform, MapBatches) else "model"
        self._transform = TIMES.timed(name, transform)  # type: ignore[assignment]

    with ExitStack() as patches:
        for owner, name, part in (
            (dataset, "encode", "bookkeeping"),
            (MapBatches, "_call_code", "model"),
            (ChunkCommits, "wait", "write"),
            (segment, "_load", "load"),
        ):
            timed = TIMES.timed(part, getattr(owner, name))
            patches.enter_context(patch.object(owner, name, timed))
        patches.enter_context(patch.object(StepRunner, "__init__", timed_step))
        patches.enter_context(patch.object(job, "Executor", OneProcess))
        yield


def profile(document: Document, rows: int) -> list[str]:
    """Run a job twice in this process, and return lines about the parts of the second run. The
    first one imports the libraries."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    try:
        with _timed_parts():
            for number in range(2):
                TIMES.seconds.clear()
                _run(document, f"{document['spec']['write']['path']}-{number}")
    finally:
        ray.shutdown()
    name = document["metadata"]["name"]
    return [f"feed {name}: {rows / sum(TIMES.seconds.values()):.0f} rows/s in one process",
            *TIMES.lines(rows)]  # fmt: skip


def _run(document: Document, output: str) -> None:
    spec = document["spec"]
    parsed = parse({**document, "spec": {**spec, "write": {**spec["write"], "path": output}}})
    plan = plan_for_machine(parsed.spec, gpus=0)
    report = JobRun(parsed, lambda: nullcontext(plan), _ignore, StopSignal()).run()
    assert report.state == "succeeded", report


def _ignore(report: object) -> None:
    """Publish nothing."""
