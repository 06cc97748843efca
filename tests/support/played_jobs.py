"""A whole job in one process and without Ray: everything is the product's but who calls the tasks.

Rows pass through the stages file by file. Write tasks take few of them, so that the rows that have
come of one row of the input fall into several tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from batchinference.pipeline import dataset, job, sink, storage
from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.dataset import Execution
from batchinference.pipeline.job import JobRun
from batchinference.pipeline.job_input import open_input
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.owner import owner_of
from batchinference.pipeline.stage import ErrorHandling, StageRunner
from batchinference.pipeline.supervise import StopRequest
from batchinference.pipeline.table_sink import sink_for
from batchinference.plan import plan_for_machine
from batchinference.spec import parse
from batchinference.spec.report import Report
from support.documents import Document, document

ROWS_PER_TASK = 4
INPUT = {
    "a.jsonl": [(0, [1, 2]), (1, [4]), (2, [3, 5, 6]), (3, [8])],
    "b.jsonl": [(4, [10, -1]), (5, [-2]), (6, [])],
    "c.jsonl": [(7, [7, 9, 11, 13, 15])],
    "d.jsonl": [],
}
"""Numbers of rows, and what they become. What is negative is bad, and row 3 is left out."""
ROWS = [
    {"n": n, "values": value, "half": value / 2 if value % 2 == 0 else None}
    for rows in INPUT.values()
    for n, values in rows
    for value in values
    if value > 0 and n != 3
]
ERRORS = [(4, "b.jsonl"), (5, "b.jsonl")]
"""The rows of which something is bad, and their files."""
COUNTS = {"read": 8, "written": len(ROWS), "failed": 2, "skipped": 2}


def write_input(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name, rows in INPUT.items():
        lines = [json.dumps({"n": n, "values": values}) + "\n" for n, values in rows]
        (directory / name).write_text("".join(lines))
    return directory


def small_job(source: Path | str, output: Path | str, **write: Any) -> Document:
    """Its rows multiply, some are bad, and one is filtered out. `write` adds fields."""
    steps = [
        {"name": "few", "filter": "n != 3"},
        {"name": "each", "explode": {"column": "values"}},
        {"name": "half", "python": {"callable": "support.played_jobs:half"}},
    ]
    return document(
        "small",
        read={"format": "json", "paths": [str(source)]},
        write={"format": "parquet", "path": str(output), **write},
        steps=steps,
        errors={"maxRows": 10},
    )


def half(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """Some write tasks see numbers in the new column, and some nothing but nulls."""
    if (batch["values"] < 0).any():
        raise ValueError("negative")
    halves = [value / 2 if value % 2 == 0 else None for value in batch["values"].tolist()]
    return {**batch, "half": halves}


class PlayedExecution(Execution):
    """A pass over what is missing, task after task; or only one of them."""

    def __init__(self, *arguments: Any, only: int | None = None) -> None:
        super().__init__(*arguments)
        self._only = only

    def run(self) -> None:
        prepared, spec = self._prepared, self._spec
        errors = ErrorHandling(spec.errors.tolerant, prepared.attempt.layout.input)
        runners = [StageRunner(stage, errors) for stage in self._plan.stages]
        target = sink_for(spec.write, prepared.attempt, 1)
        done = (
            reduce(lambda rows, run: run(rows), runners, table)
            for read in prepared.input.read_tasks(3, prepared.gaps)
            for table in read()
        )
        for task, blocks in enumerate(_of_tasks(done)):
            if task == 0:
                target.on_write_start(blocks[0].schema)
            if self._only in (None, task):
                target.write(blocks, SimpleNamespace(task_idx=task))


def _of_tasks(tables: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
    """The blocks that each task gets."""
    rows = [table.slice(row, 1) for table in tables for row in range(table.num_rows)]
    for start in range(0, len(rows), ROWS_PER_TASK):
        yield rows[start : start + ROWS_PER_TASK]


def play_task(given: Document, task: int) -> None:
    """A task of the run that has the output now, as when Ray starts it a second time.

    Raises BadOutput when it comes late."""
    spec = parse(given).spec
    layout = Layout.of(spec)
    owner = owner_of(layout)
    assert owner is not None
    read = open_input(spec.read)
    prepared: Any = SimpleNamespace(input=read, attempt=Attempt(layout, owner), gaps=None)
    with patch.object(sink, "PUT_THREADS", 1):
        PlayedExecution(spec, plan_for_machine(spec, gpus=0), prepared, only=task).run()


class _Inline:
    """What stands for Ray where a task of it is called: the function itself."""

    def remote(self, **_: Any) -> Callable[[Callable[..., Any]], Any]:
        return lambda function: SimpleNamespace(remote=function)

    def get(self, results: list[Any]) -> list[Any]:
        return results


def play(given: Document, publish: Callable[[Report], None] = lambda report: None) -> Report:
    """Run it to its end. Storage is written to in the same order every time."""
    parsed = parse(given)
    with (
        patch.object(job, "Execution", PlayedExecution),
        patch.object(job, "spilled_bytes", lambda: None),
        patch.object(dataset, "ray", _Inline()),
        patch.object(sink, "PUT_THREADS", 1),
        patch.object(storage, "DELETE_THREADS", 1),
    ):
        plan = plan_for_machine(parsed.spec, gpus=0)
        return JobRun(parsed, plan, publish, StopRequest()).run()
