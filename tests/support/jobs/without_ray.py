"""Runs a whole job in this process, without Ray.

Only the class that starts tasks is replaced. The tasks of a single segment commit after each input
file, so that a task makes several commits. In other jobs, a write task takes four rows by default,
so that the output rows of one input row are spread over several tasks.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import IO, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from ray import cloudpickle

from batchinference.pipeline import job
from batchinference.pipeline.commit import heartbeat, replacement
from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.lease import read_lease
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.execution import executor, ray_connection
from batchinference.pipeline.execution.block_codec import encode
from batchinference.pipeline.execution.chunk_commits import CommitRules
from batchinference.pipeline.execution.crash_isolation import NO_DEATHS
from batchinference.pipeline.execution.dataset import BlockCalls
from batchinference.pipeline.execution.executor import Executor
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.stop_signals import StopSignal
from batchinference.pipeline.input import ReadRows
from batchinference.pipeline.input.file_input import open_input
from batchinference.pipeline.input.planning import Sizing
from batchinference.pipeline.job import JobRun
from batchinference.pipeline.output.tables.kinds import table_or_none
from batchinference.pipeline.storage import location
from batchinference.plan import plan_for_machine
from batchinference.spec import BatchInference, parse
from batchinference.spec.report import Report
from support.documents.minimal import Document, document
from support.program import run_program

ROWS_PER_TASK = 4
INPUT = {
    "a.jsonl": [(0, [1, 2]), (1, [4]), (2, [3, 5, 6]), (3, [8])],
    "b.jsonl": [(4, [10, -1]), (5, [-2]), (6, [])],
    "c.jsonl": [(7, [7, 9, 11, 13, 15])],
    "d.jsonl": [],
}
"""Input rows and the values that each explodes into. Negative values fail; row 3 is filtered."""
ROWS = [
    {"n": n, "values": value, "half": value / 2 if value % 2 == 0 else None}
    for rows in INPUT.values()
    for n, values in rows
    for value in values
    if value > 0 and n != 3
]
ERRORS = [(4, "b.jsonl"), (5, "b.jsonl")]
"""The failed rows, and their files."""
COUNTS = {"read": 8, "written": len(ROWS), "failed": 2, "filtered": 2}


def write_input(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name, rows in INPUT.items():
        lines = [json.dumps({"n": n, "values": values}) + "\n" for n, values in rows]
        (directory / name).write_text("".join(lines))
    return directory


def small_job(source: Path | str, output: Path | str, **write: Any) -> Document:
    """Return a job that explodes rows; some fail and one is filtered. `write` adds fields."""
    steps = [
        {"name": "few", "filter": "n != 3"},
        {"name": "each", "explode": {"column": "values"}},
        {"name": "half", "python": {"callable": "support.jobs.without_ray:half"}},
    ]
    return document(
        "small",
        read={"format": "json", "paths": [str(source)]},
        write={"format": "parquet", "path": str(output), **write},
        steps=steps,
        errors={"maxRows": 10},
    )


CALLS: list[int] = []
"""The number of rows of each batch that `half` got in this process."""


def half(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """Add a column in which some write tasks see numbers and some see only nulls."""
    CALLS.append(len(batch["values"]))
    if (batch["values"] < 0).any():
        raise ValueError("negative")
    halves = [value / 2 if value % 2 == 0 else None for value in batch["values"].tolist()]
    return {**batch, "half": halves}


class InProcessExecution(Executor):
    """Runs the tasks of a pass one after the other, or only one of them."""

    rows_per_task = ROWS_PER_TASK

    def __init__(self, *arguments: Any, only: int | None = None) -> None:
        super().__init__(*arguments)
        self._only = only

    @property
    def _committer(self) -> Committer:
        return replace(super()._committer, write_threads=1)

    def run(self) -> None:
        tasks = self._prepared.input.read_tasks(3, self._prepared.missing)
        if self._plan.single_segment:
            self._run_commit_tasks(tasks)
        else:
            self._run_dataset(tasks)

    def _run_commit_tasks(self, tasks: list[ReadRows]) -> None:
        for task in self._commit_tasks(tasks).tasks:
            if self._only in (None, task.number):
                rules = CommitRules(self.rows_per_task // 4, commit_seconds=0.0)
                segment = replace(task.segment, batch_bytes=1)
                replace(task, rules=rules, segment=segment)(retried=False)

    def _run_dataset(self, tasks: list[ReadRows]) -> None:
        runners = [
            BlockCalls(stage.name, Segment.of([stage], self._errors, self._run_id), Event())
            for stage in self._plan.stages
        ]
        target = self._dataset(tasks, 1, None, reads_run_steps=False).sink([])
        done = (
            block
            for read in tasks
            for batch in read()
            for block in reduce(_run, runners, iter([encode(batch)]))
        )
        for task, blocks in enumerate(_blocks_of_tasks(done, self.rows_per_task)):
            if task == 0:
                target.on_write_start(blocks[0].schema)
            if self._only in (None, task):
                target.write(blocks, SimpleNamespace(task_idx=task))


def _run(blocks: Iterator[pa.Table], calls: BlockCalls) -> Iterator[pa.Table]:
    for block in blocks:
        yield from calls(block)


def _blocks_of_tasks(tables: Iterable[pa.Table], size: int) -> Iterator[list[pa.Table]]:
    """Yield the blocks of each task: one block for each row."""
    rows = [table.slice(row, 1) for table in tables for row in range(table.num_rows)]
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def run_task_again(given: Document, task: int) -> None:
    """Run one task of the pass that has the output's lease, as Ray does when it retries a task.

    Raises BadOutput if the task comes late."""
    spec = parse(given).spec
    layout = Layout.of(spec)
    lease = read_lease(layout)
    assert lease is not None
    read = open_input(spec.read)
    sizing = Sizing(3, 3, 1)
    prepared: Any = SimpleNamespace(
        input=read,
        job_pass=JobPass(layout, lease),
        start=SimpleNamespace(input=digest(layout.input.read())),
        missing=None,
        sizing=sizing,
        first_file=0,
        table=table_or_none(spec.write),
        isolation=NO_DEATHS,
    )
    InProcessExecution(spec, plan_for_machine(spec, gpus=0), prepared, only=task).run()


class _InlineRay:
    """Calls a remote function in place, with a copy of its argument as in another process."""

    def remote(self, **_: Any) -> Callable[[Callable[..., Any]], Any]:
        return lambda function: SimpleNamespace(
            remote=lambda value: function(cloudpickle.loads(cloudpickle.dumps(value)))
        )

    def get(self, results: list[Any]) -> list[Any]:
        return results


def run_without_ray(
    given: Document | BatchInference,
    publish: Callable[[Report], None] = lambda report: None,
    rows_per_task: int = ROWS_PER_TASK,
    stop: StopSignal | None = None,
    **times: float,
) -> Report:
    """Run a job to its end, like a process of its own. Its writes have the same order every time.
    `times` are its layout's."""
    parsed = given if isinstance(given, BatchInference) else parse(given)
    with in_this_process(rows_per_task), patch.object(heartbeat, "_running", set()):
        plan = plan_for_machine(parsed.spec, gpus=0)
        layout, stop = replace(Layout.of(parsed.spec), **times), stop or StopSignal()
        return JobRun(parsed, lambda: nullcontext(plan), publish, stop, layout=layout).run()


@contextmanager
def in_this_process(rows_per_task: int = ROWS_PER_TASK) -> Iterator[None]:
    """Run all jobs in this process, without Ray."""
    with (
        patch.object(InProcessExecution, "rows_per_task", rows_per_task),
        patch.object(job, "Executor", InProcessExecution),
        patch.object(job, "spilled_bytes", lambda: None),
        patch.object(executor, "ray", _InlineRay()),
        patch.object(location, "DELETE_THREADS", 1),
        patch.object(replacement, "MOVE_THREADS", 1),
    ):
        yield


@dataclass(frozen=True)
class Invoked:
    """A command that has ended in this process."""

    exit_code: int
    stdout: str
    stderr: str


@contextmanager
def without_starting_ray() -> Iterator[None]:
    """Run without Ray on a simulated machine with two CPUs."""
    result = {"CPU": 2.0, "memory": float(1 << 30)}
    with patch.object(ray_connection, "local_ray", lambda *_, **__: nullcontext(result)):
        yield


def invoke_without_ray(*arguments: str, stdin: str = "") -> Invoked:
    """Run the command in this process, on a simulated machine with two CPUs."""
    with in_this_process(), without_starting_ray(), _captured_stderr() as printed:
        done = run_program(*arguments, stdin=stdin)
        printed.seek(0)
        return Invoked(done.exit_code, done.stdout, done.stderr + printed.read().decode())


@contextmanager
def _captured_stderr() -> Iterator[IO[bytes]]:
    """Capture the file descriptor, to which the command prints directly."""
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(saved, 2)
            os.close(saved)
