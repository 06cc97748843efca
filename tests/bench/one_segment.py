"""Compares two ways to run a job without pools: a loop over Ray tasks, and read tasks of Ray Data.

The tasks do nothing, so that only the cost of starting and of scheduling them is measured. This is
why `execution/commit_tasks` has its own loop. Prints a line of JSON per way and number of tasks.

    python tests/bench/one_segment.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pyarrow as pa
import ray
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

TASKS, ROUNDS = (8, 64, 512), 5


def nothing() -> None:
    """Do the work of a task."""


def run_loop(tasks: int) -> None:
    """Run tasks as `CommitTasks` does: twice as many as there are CPUs at a time."""
    remote = ray.remote(num_cpus=1)(nothing)
    left, running = tasks, list[ray.ObjectRef[None]]()
    while left or running:
        room = min(left, 2 * int(ray.cluster_resources()["CPU"]) - len(running))
        running += [remote.remote() for _ in range(room)]
        left -= room
        done, running = ray.wait(running, timeout=0.5)
        ray.get(done)


class Receipts(Datasource):
    """Read tasks that do the work of a task and return one row."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self._tasks = tasks

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *_: object, **__: object) -> list[ReadTask]:
        metadata = BlockMetadata(num_rows=1, size_bytes=8, input_files=None, exec_stats=None)

        def read() -> list[pa.Table]:
            nothing()
            return [pa.table({"done": [1]})]

        return [ReadTask(read, metadata)] * self._tasks


def run_ray_data(tasks: int) -> None:
    """Run the tasks as read tasks of Ray Data."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    read = ray.data.read_datasource(Receipts(tasks), override_num_blocks=tasks, num_cpus=1)
    assert read.materialize().count() == tasks


def seconds_of(run: Callable[[int], None], tasks: int) -> float:
    began = time.perf_counter()
    run(tasks)
    return time.perf_counter() - began


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=2)
    for tasks in TASKS:
        for name, run in (("loop", run_loop), ("Ray Data", run_ray_data)):
            seconds = [seconds_of(run, tasks) for _ in range(ROUNDS)]
            shown = {"first": round(seconds[0], 2), "least": round(min(seconds), 2)}
            print(json.dumps({"way": name, "tasks": tasks, **shown}))
