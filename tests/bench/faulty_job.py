"""Runs a BatchInference with the faults of faults.py: `faulty_job.py FILE`.

This is the command `batchinference run` with two changes. A subclass of its datasink calls `at`.
`Location.write` calls `at` before each data file, and before and after each manifest, which commits
a task. FILE_NAMES selects the scheme of the file names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

from faults import at
from ray.data.block import Block

from batchinference.cli.main import app
from batchinference.pipeline.commit.manifest import parse_manifest_name
from batchinference.pipeline.commit.output_paths import Layout, part_prefix
from batchinference.pipeline.execution import dataset
from batchinference.pipeline.execution.dataset import CommitDatasink
from batchinference.pipeline.storage.location import Location, base_name


class FaultySink(CommitDatasink):
    def write(self, blocks: Iterable[Block], ctx: Any) -> None:
        inject()
        at("begun", ctx.task_idx)
        there = list(blocks)
        known = SimpleNamespace(task_idx=ctx.task_idx)
        at("prepared", ctx.task_idx, partial(finish_task, self, there, known))
        super().write(there, ctx)


def finish_task(sink: FaultySink, blocks: list[Block], ctx: Any) -> None:
    """Do the rest of a write task that has its rows."""
    inject()
    CommitDatasink.write(sink, blocks, ctx)


def write(self: Location, content: bytes | memoryview) -> None:
    name = base_name(self.path)
    if name.startswith("part-"):
        at("puts", int(name.split("-")[3]))
    if (commit := parse_manifest_name(name)) is None:
        _write(self, content)
        return
    (task, _), _ = commit
    at("put", task)
    _write(self, content)
    at("committed", task)


def unpadded(self: Layout, pass_number: int, task: int, unique: str) -> str:
    """Return a file name whose task number is not padded with zeros."""
    return f"{part_prefix(self.key)}{pass_number}-{task}-{unique}"


def beyond(self: Layout, pass_number: int, task: int, unique: str) -> str:
    """Return a file name as in a job with more than 100 million tasks: task 1 gets the number
    10,000,000, and tasks 10 to 19 get 100,000,000 and the numbers after it."""
    number = {1: 10_000_000, **{task: 99_999_990 + task for task in range(10, 20)}}
    return _part_name(self, pass_number, number.get(task, task), unique)


_write: Callable[[Location, bytes | memoryview], None] = Location.write
_part_name: Callable[[Layout, int, int, str], str] = Layout.file_prefix
NAMES = {"": _part_name, "unpadded": unpadded, "beyond": beyond}


def inject() -> None:
    """Patch the product in this process. Each process of the run calls this."""
    setattr(Location, "write", write)  # noqa: B010 - mypy reports an assignment
    setattr(Layout, "file_prefix", NAMES[os.environ.get("FILE_NAMES", "")])  # noqa: B010


if __name__ == "__main__":
    # workers cannot import classes of __main__
    import faulty_job

    setattr(dataset, "CommitDatasink", faulty_job.FaultySink)  # noqa: B010
    app(["run", *sys.argv[1:]])
