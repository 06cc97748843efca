"""Runs jobs without actor pools: each Ray task reads, computes and commits a part of the input.

Rows do not leave the process that reads them. A task commits its rows in chunks, so that its memory
is bounded and little work is lost if its process dies. Ray runs the tasks in as many worker
processes as tasks fit on its CPUs, and each process loads the models once.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from random import uniform
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.manifest import Manifest
from batchinference.pipeline.commit.row_coverage import RowSet, resolve_overlaps
from batchinference.pipeline.errors import BadOutput, Incomplete, JobFailure, WorkerCrashed
from batchinference.pipeline.execution.batch_size import (
    BATCH_SECONDS,
    UNLIMITED,
    WINDOW_BATCHES,
    BatchRows,
    BatchSize,
)
from batchinference.pipeline.execution.crashed_rows import (
    CRASHED,
    CrashNote,
    Isolation,
    next_isolation,
    noted_as,
    take_crash_note,
)
from batchinference.pipeline.execution.fused_sizing import SMALL_COMMIT_SECONDS
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner
from batchinference.pipeline.execution.task_notes import peak_memory, retry_notes
from batchinference.pipeline.execution.text_windows import (
    columns_of_first_model,
    longest_first,
    text_columns,
)
from batchinference.pipeline.input import ReadRows
from batchinference.pipeline.input.planning import FILE_BYTES
from batchinference.pipeline.ray_compat import (
    has_flag,
    retries_of_this_task,
    set_flag,
)
from batchinference.pipeline.row_batch import (
    READ_STEP,
    WRITE_STEP,
    RowBatch,
    merged,
    resized,
)
from batchinference.pipeline.step_time import StepTime
from batchinference.pipeline.storage.memory_limit import retry_without_limit
from batchinference.spec.lifecycle import DRAIN_SECONDS

if TYPE_CHECKING:
    from batchinference.pipeline.execution.control import ExecutionControl
    from batchinference.plan import Plan, Stage

ABORT_SECONDS = 5.0
"""Seconds that the other tasks have to commit their rows after a task has failed."""
POLL_SECONDS = 0.5
"""Maximum seconds until the driver notices a request to stop."""
TASK_POLLS = (3.0, 5.0)
"""Multiples of POLL_SECONDS after which a task looks for a request to stop. All tasks of a large
cluster ask the same process, so they ask less often, and not at the same time."""
COMMIT_SECONDS = 30.0
"""A task commits at least this often, as soon as it has enough rows for a file."""
SMALL_COMMIT_SHARE = 0.25
"""A task commits fewer rows only after this share of its duration, so that a long task makes few
small commits."""
BATCH_BYTES = 16 << 20
"""Maximum size of a batch. If a step has a batch size, MAX_BATCH_BYTES applies instead."""
MAX_BATCH_BYTES = 128 << 20
WINDOW_SECONDS = 2 * WINDOW_BATCHES * BATCH_SECONDS
"""A window that takes longer, because the steps are slower than expected, is yielded in parts."""


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
        within DRAIN_SECONDS after that, the user's code hangs, and the process exits."""
        requested, ended = Event(), Event()

        def watch() -> None:
            while not ended.wait(POLL_SECONDS * uniform(*TASK_POLLS)):  # noqa: S311
                sent = False
                with suppress(MemoryError):  # another thread is within `memory_limit`
                    sent = self.is_sent()
                if sent:
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
class PreparedRows:
    """Rows for the first model, and the duration of the steps before it in seconds."""

    rows: RowBatch
    seconds: float

    def seconds_of(self, batch: RowBatch) -> float:
        """Return the part of the seconds for a batch of these rows; all if it has no rows."""
        share = len(batch.ids) / len(self.rows.ids) if len(batch.ids) else 1.0
        return self.seconds * share


@dataclass(frozen=True)
class Steps:
    """The stages of a job, which each worker process loads once for all its tasks."""

    pickled: bytes
    batch_rows: int = 0
    """The largest batch size of a step; 0 if no step has one."""
    texts: tuple[str, ...] = ()
    """The columns that the first model reads."""
    before: int = 0
    """The number of stages before the stage of the first model."""

    @classmethod
    def of(cls, plan: Plan, errors: ErrorHandling) -> Steps:
        """Return the steps of a plan. Each step uses as many threads as the task has CPUs."""
        stages = [replace(stage, cpus=plan.task_cpus) for stage in plan.stages]
        steps = [step for stage in stages for step in stage.steps]
        sizes = (BatchSize.of(step).size for step in steps)
        largest = max((size for size in sizes if size < UNLIMITED), default=0)
        models = (number for number, stage in enumerate(stages) if stage.steps[0].model)
        texts = columns_of_first_model(steps)
        return cls(pickle.dumps((stages, errors)), largest, texts, next(models, 0))

    def applied_to(self, read: Iterator[RowBatch], stopping: Event) -> Iterator[RowBatch]:
        """Yield the results of the rows. If `stopping` is set, complete results are yielded next.

        If the first model reads texts, it gets rows in windows, longest texts first, so that the
        texts of a batch have similar lengths and need little padding. The results are in input
        order. If a window is yielded in parts, only the rows of each part are in input order."""
        rows = BatchRows(self.batch_rows)
        batches = read if self.before else self._detect_texts(read, rows)

        def wanted() -> int:
            return 1 if stopping.is_set() else rows.window  # a stop does not wait for a window

        for window in resized(batches, wanted, self._window_bytes):
            _stages_of_process(self.pickled)  # loading is not timed as part of a batch
            for prepared in self._prepared(window, rows, stopping):
                for results in self._computed(prepared, rows, stopping):
                    yield results.in_order_of(window.ids)

    @property
    def _window_bytes(self) -> int:
        return MAX_BATCH_BYTES if self.batch_rows else BATCH_BYTES

    def applied_isolated(
        self, read: Iterator[RowBatch], isolation: Isolation, stopping: Event
    ) -> Iterator[RowBatch]:
        """Yield the results of the rows of an isolated run (see `crashed_rows`)."""
        for batch in read:
            suspects, others = isolation.divided(self._without_crashed(batch, isolation.crashed))
            stages = _stages_of_process(self.pickled)
            parts = (_run_stages(stages, part, stopping) for part in suspects)
            results = UntilError(itertools.chain.from_iterable(parts))
            if done := list(results):
                yield merged(done)
            results.check()
            yield from self.applied_to(iter([others]), stopping)

    def end_isolated_run(self) -> None:
        """Remove what an isolated run has left in this process: batch sizes and column types that
        its small batches have set. The next task loads the steps again."""
        _stages_of_process.cache_clear()
        _, errors = _unpickled(self.pickled)
        errors.remove_start()

    def _without_crashed(self, batch: RowBatch, crashed: Sequence[CrashNote]) -> RowBatch:
        """Return the batch with the crashed rows as failed rows."""
        _, errors = _unpickled(self.pickled)
        failed = [
            row
            for note in crashed
            for place in np.flatnonzero(batch.ids == note.first).tolist()
            for row in errors.failed_rows(note.step, batch, {place: WorkerCrashed(CRASHED)})
        ]
        if not failed:
            return batch
        kept = np.setdiff1d(np.arange(len(batch.ids)), [place for place, _ in failed])
        return batch.derived(batch.table.take(pa.array(kept)), kept, failed)

    def _prepared(
        self, window: RowBatch, rows: BatchRows, stopping: Event
    ) -> Iterator[PreparedRows]:
        """Run the steps before the first model over the rows of a window, and yield the results.
        They are yielded in parts if there are no texts to sort, if they are large, if the steps
        take longer than WINDOW_SECONDS, or if `stopping` is set."""
        if not self.before:
            yield PreparedRows(window, 0.0)
            return
        done: list[RowBatch] = []
        since = time.monotonic()
        batches = (self._run_before_model(batch, stopping) for batch in rows.cut(window))
        results = UntilError(itertools.chain.from_iterable(batches))
        for result in self._detect_texts(iter(results), rows):
            done.append(result)
            seconds = time.monotonic() - since
            is_large = sum(batch.nbytes for batch in done) >= self._window_bytes
            if is_large or seconds >= WINDOW_SECONDS or stopping.is_set() or not rows.have_texts:
                yield PreparedRows(merged(done), seconds)
                done, since = [], time.monotonic()
        if done:
            yield PreparedRows(merged(done), time.monotonic() - since)
        results.check()

    def _computed(
        self, prepared: PreparedRows, rows: BatchRows, stopping: Event
    ) -> Iterator[RowBatch]:
        """Yield the results of the first model and the steps after it."""
        ordered = longest_first(prepared.rows, self.texts)
        done: list[RowBatch] = []
        since = time.monotonic() - prepared.seconds
        for batch, inputs in rows.cut_prepared(ordered):
            began, waited = time.monotonic(), 0.0
            results = UntilError(self._run_from_model(batch, stopping))
            for result in results:
                done.append(result)
                if sum(part.nbytes for part in done) >= FILE_BYTES:
                    paused = time.monotonic()
                    yield merged(done)
                    done = []
                    waited += time.monotonic() - paused  # perhaps for the previous commit
            if results.error is not None:
                yield from [merged(done)] if done else []
                results.check()
            now = time.monotonic()
            rows.record_batch(inputs, now - began - waited + prepared.seconds_of(batch))
            if stopping.is_set() or now - since >= WINDOW_SECONDS:
                yield from [merged(done)] if done else []
                done, since = [], now
        if done:
            yield merged(done)

    def _detect_texts(self, batches: Iterator[RowBatch], rows: BatchRows) -> Iterator[RowBatch]:
        """Yield the batches, and record in `rows` if they have texts."""
        for batch in batches:
            rows.have_texts |= bool(text_columns(batch.table, self.texts))
            yield batch

    def take_notes(self) -> Iterator[tuple[str, str]]:
        """Yield notes of the measurements of the steps in this process since the last notes."""
        for stage in _stages_of_process(self.pickled):
            yield from stage.take_notes()

    def _run_before_model(self, batch: RowBatch, stopping: Event) -> Iterator[RowBatch]:
        """Yield the results of the stages before the stage of the first model."""
        return _run_stages(_stages_of_process(self.pickled)[: self.before], batch, stopping)

    def _run_from_model(self, batch: RowBatch, stopping: Event) -> Iterator[RowBatch]:
        """Yield the results of the stage of the first model and the stages after it."""
        return _run_stages(_stages_of_process(self.pickled)[self.before :], batch, stopping)


class UntilError:
    """Yields items up to an error, so that the items before it can be used. `error` is the error
    after the last item, if any."""

    def __init__(self, items: Iterator[RowBatch]) -> None:
        self._items = items
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[RowBatch]:
        try:
            yield from self._items
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self.error = error

    def check(self) -> None:
        """Raise the error, if any."""
        if self.error is not None:
            raise self.error


def _run_stages(stages: list[StageRunner], batch: RowBatch, stopping: Event) -> Iterator[RowBatch]:
    batches = iter([batch])
    for stage in stages:
        batches = itertools.chain.from_iterable(map(partial(stage, stopping=stopping), batches))
    return batches


@lru_cache(maxsize=1)  # models are large
def _stages_of_process(pickled: bytes) -> list[StageRunner]:
    stages, errors = _unpickled(pickled)
    if stages:  # tokenizers would start a thread for each CPU of the machine
        os.environ.setdefault("RAYON_NUM_THREADS", str(int(stages[0].cpus)))
    return [StageRunner(stage, errors) for stage in stages]


@lru_cache(maxsize=1)
def _unpickled(pickled: bytes) -> tuple[list[Stage], ErrorHandling]:
    stages, errors = pickle.loads(pickled)  # noqa: S301 - our own bytes, from the driver
    return stages, errors


@dataclass(frozen=True)
class FusedTask:
    """Reads a part of the input, runs all steps and commits the results.

    `rows_per_commit` is the number of input rows that are enough for a file. After
    `small_commit_seconds`, a task commits fewer rows."""

    number: int
    read: ReadRows
    steps: Steps
    committer: Committer
    rows_per_commit: int
    stop: StopRequest
    small_commit_seconds: float = SMALL_COMMIT_SECONDS
    isolation: Isolation | None = None
    """How an isolated run computes the rows; None if this is none."""

    def __call__(self, *, retried: bool) -> None:
        """Run the task. With `retried`, another execution of it may have committed rows."""
        attempt = self.committer.attempt
        if self.stop.is_sent():
            return
        attempt.check_lease()
        earlier = attempt.manifests(self.number) if retried else []
        with (
            self.stop.watched() as stopping,
            ThreadPoolExecutor(1) as pool,
            noted_as(self.note_name if retried else None),
        ):
            number = max((manifest.number + 1 for manifest in earlier), default=0)
            commits = ChunkCommits(self, pool, number)
            read = commits.read_time.of(self.read(), lambda batch: len(batch.source))
            read = _without_committed(read, earlier)
            try:
                self._commit_all(self._results(read, stopping), commits, stopping)
            except BadOutput:  # another run has the output
                raise
            except Exception:
                with suppress(Exception):  # the cause is more important
                    commits.finish()
                raise
        if self.isolation is not None:
            self.steps.end_isolated_run()

    def _commit_all(
        self, results: Iterator[RowBatch], commits: ChunkCommits, stopping: Event
    ) -> None:
        for batch in results:
            commits.add(batch)
            if self.isolation is not None:
                commits.finish()  # the death of the process must cost no rows, and not be its fault
            if stopping.is_set():
                break  # do not wait until the reader has ended its requests
        commits.finish()

    def _results(self, read: Iterator[RowBatch], stopping: Event) -> Iterator[RowBatch]:
        if self.isolation is None:
            return self.steps.applied_to(read, stopping)
        return self.steps.applied_isolated(read, self.isolation, stopping)

    @property
    def note_name(self) -> str:
        """The name of the note of the rows that the task computes."""
        run = 0 if self.isolation is None else self.isolation.runs
        return f"batchinference-task-{self.committer.attempt.lease.run}-{self.number}-{run}"

    def retry_notes(self) -> tuple[tuple[str, str], ...]:
        """Return a note for the report if the task runs again because its process died."""
        if self.isolation is None:
            return retry_notes(WRITE_STEP)
        note = {"retries": self.isolation.runs, "task": self.number}
        return ((WRITE_STEP, json.dumps(note)),)

    def isolated_after(self, death: Exception, max_rows: int) -> FusedTask | None:
        """Return the isolated run that follows the death of the process of this task; None if the
        job must fail. `max_rows` is the maximum number of crashed rows of a task."""
        note = take_crash_note(self.note_name)
        of_process = isinstance(death, WorkerCrashedError)
        isolation = next_isolation(self.isolation, note if of_process else None, max_rows)
        return None if isolation is None else replace(self, isolation=isolation)


def _without_committed(read: Iterator[RowBatch], earlier: list[Manifest]) -> Iterator[RowBatch]:
    """Yield the rows that no earlier commit of the task holds."""
    if not earlier:
        yield from read
        return
    entries = [entry for manifest in earlier for entry in manifest.entries]
    held = RowSet.of(resolve_overlaps(entries))
    problem = "its end was reached"
    for batch in read:
        if batch.errors.num_rows:
            problem = batch.errors.column("error")[-1].as_py()
        for file, end in batch.ends:
            if held.has_rows_from(file, end):
                raise Incomplete(
                    f"file {file} of the input could be read only up to row {end}, although later "
                    f"rows were committed before: {problem}. Run the job again to compute the "
                    "missing rows"
                )
        yield batch.only(batch.source[~held.holds(batch.source)])


class ChunkCommits:
    """Collects the rows of a task and commits them in chunks. One commit runs in a thread while the
    next rows are computed."""

    def __init__(self, task: FusedTask, pool: ThreadPoolExecutor, number: int) -> None:
        self._task, self._pool = task, pool
        self._number = number
        """The number of the next commit."""
        self.read_time = StepTime(READ_STEP)
        self._pending_commit: Future[None] | None = None
        self._began = time.monotonic()
        self._start_chunk()

    def _start_chunk(self) -> None:
        self._batches: list[RowBatch] = []
        self._rows = self._bytes = 0
        self._since = time.monotonic()

    def add(self, batch: RowBatch) -> None:
        """Add rows. Commit the chunk if it is large enough. Raises JobFailure if the rows cannot be
        written because of their columns."""
        self._task.committer.files.check(batch.table.column_names)
        self._batches.append(batch)
        self._rows += len(batch.source)
        self._bytes += batch.nbytes
        if self._bytes >= FILE_BYTES or self._is_due():
            self.flush()

    def _is_due(self) -> bool:
        """Return whether the chunk is old enough to be committed with the rows that it has."""
        now = time.monotonic()
        age, enough = now - self._since, self._rows >= self._task.rows_per_commit
        small = max(self._task.small_commit_seconds, SMALL_COMMIT_SHARE * (now - self._began))
        return age >= (COMMIT_SECONDS if enough else small)

    def flush(self) -> None:
        """Begin to commit the chunk, after the commit of the previous one."""
        self.wait()
        if not self._batches:
            return
        chunk, committer = merged(self._batches), self._task.committer
        notes = (*self._times(), *peak_memory(committer.attempt.lease.run).notes(WRITE_STEP))
        chunk = replace(chunk, notes=(*chunk.notes, *notes, *self._task.retry_notes()))
        put = partial(committer.put, chunk, self._task.number, self._number)
        # a repeated commit writes files of other names
        self._pending_commit = self._pool.submit(retry_without_limit, put)
        self._number += 1
        self._start_chunk()

    def _times(self) -> Iterator[tuple[str, str]]:
        """Yield notes of the measurements since the last notes."""
        yield from self.read_time.take_rest()
        yield from self._task.steps.take_notes()

    def finish(self) -> None:
        """Commit the chunk, and wait until it is committed. Raises the error of a commit."""
        self.flush()
        self.wait()

    def wait(self) -> None:
        """Wait for the running commit. Raises its error."""
        if self._pending_commit is not None:
            self._pending_commit.result()


@dataclass(frozen=True)
class FusedExecution:
    """Runs fused tasks on Ray. `at_once` returns how many of them may be submitted, given the
    seconds since the start."""

    tasks: list[FusedTask]
    stop: StopRequest
    arguments: dict[str, Any]
    at_once: Callable[[float], int]
    control: ExecutionControl
    max_crashed: int = 0
    """The maximum number of crashed rows of a task. With 0, a task whose process dies again and
    again always fails the job."""

    def run(self) -> None:
        """Run the tasks until all rows are committed, or, if the job is draining, until running
        tasks have committed the rows that are complete. Raises the first failure of a task."""
        waiting = iter(self.tasks)
        running: dict[Any, FusedTask] = {}
        began = time.monotonic()
        try:
            while not self.control.draining:
                room = max(0, self.at_once(time.monotonic() - began) - len(running))
                running |= {self._start(task): task for task in itertools.islice(waiting, room)}
                if not running:
                    return
                running = self._wait_for_tasks(running)
            self.stop.send()
            while running:
                running = self._wait_for_tasks(running)
        except BaseException:
            self.stop.send()
            # tasks that do not end in time are killed together with the driver
            ray.wait(list(running), num_returns=len(running), timeout=ABORT_SECONDS)
            raise

    @cached_property
    def _function(self) -> Any:
        return ray.remote(**self.arguments)(_run)

    def _start(self, task: FusedTask) -> Any:
        """Start a task and return its reference. Isolated runs are not retried by Ray."""
        retries = {} if task.isolation is None else {"max_retries": 0}
        return self._function.options(name=self.control.stage, **retries).remote(task)

    def _wait_for_tasks(self, running: dict[Any, FusedTask]) -> dict[Any, FusedTask]:
        """Wait up to POLL_SECONDS for tasks, and return those that still run, including isolated
        runs of tasks whose process died. Raises the failure of a task, and JobFailure if the job is
        given up."""
        if self.control.given_up:
            raise JobFailure("given up")
        done, left = ray.wait(list(running), timeout=POLL_SECONDS)
        isolated = [self._isolated_after(reference, running[reference]) for reference in done]
        again = {self._start(task): task for task in isolated if task is not None}
        return {reference: running[reference] for reference in left} | again

    def _isolated_after(self, reference: Any, task: FusedTask) -> FusedTask | None:
        """Return the isolated run that follows an ended task; None if it has succeeded. Raises the
        failure of the task."""
        try:
            ray.get(reference)
        except (WorkerCrashedError, NodeDiedError, OutOfMemoryError) as death:
            ending = self.control.draining or self.control.given_up
            isolated = None if ending else task.isolated_after(death, self.max_crashed)
            if isolated is None:
                raise
            return isolated
        return None


def _run(task: FusedTask) -> None:
    task(retried=task.isolation is not None or retries_of_this_task() > 0)
