"""The faults of checkpoint.py, which are injected into write tasks on both sides.

Both sides call `at` when a write task reaches one of these points:

    begun       the task has started
    prepared    it has its rows, and Ray's checkpoint has written its pending file
    puts        it has made all checks and is about to write its data
    put         its data is written but not committed
    committed   it has committed

CHECKPOINT_FAULT names the fault. CHECKPOINT_FLAGS is a directory of flag files, through which the
processes of a run and the benchmark signal their progress to each other.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ray import cloudpickle

Point = Literal["begun", "prepared", "puts", "put", "committed"]
FAULT, FLAGS = "CHECKPOINT_FAULT", "CHECKPOINT_FLAGS"
CHOSEN = 1
"""The number of the write task that gets the fault."""
COMMITTED_BEFORE = 20
"""Number of tasks that commit before a run is killed in the middle of exploded rows."""


def at(point: Point, task: int, finish_task: Callable[[], None] | None = None) -> None:
    """Inject the fault for a write task at this point. `finish_task` does the rest of the task."""
    if point == "committed":
        put_flag(f"committed-{task}")
    if fault := FAULTS.get(os.environ.get(FAULT, "")):
        fault(point, task, finish_task)


def put_flag(name: str, content: bytes = b"") -> None:
    """Create a flag file atomically."""
    path = Path(os.environ[FLAGS]) / name
    path.with_suffix(f".{os.getpid()}").write_bytes(content)
    path.with_suffix(f".{os.getpid()}").rename(path)


def has_flag(name: str) -> bool:
    return (Path(os.environ[FLAGS]) / name).exists()


def wait_for_flag(name: str) -> None:
    while not has_flag(name):
        time.sleep(0.02)


def _hang() -> None:
    put_flag("hangs")
    wait_for_flag("the end of the run, which is killed")


def _worker_dies(point: Point, task: int, finish_task: object) -> None:
    """Kill the worker right after its commit. The retry of the task hangs."""
    if task == CHOSEN and point == "committed":
        put_flag("died")
        os.kill(os.getpid(), signal.SIGKILL)
    if task == CHOSEN and point == "put" and has_flag("died"):
        _hang()


def _stops_in_the_middle(point: Point, task: int, finish_task: object) -> None:
    """Let only the first COMMITTED_BEFORE tasks commit; the others hang."""
    if task >= COMMITTED_BEFORE and point == "prepared":
        _hang()


def _one_is_slow(point: Point, task: int, finish_task: object) -> None:
    """Make one task hang after it has written its data, before its commit."""
    if task == CHOSEN and point == "put":
        _hang()


def _one_is_cut_off(point: Point, task: int, finish_task: Callable[[], None] | None) -> None:
    """Make one task hang, and save its remaining work for a process that survives the run
    (late_worker.py)."""
    if task == CHOSEN and point == "prepared":
        put_flag("cut off", cloudpickle.dumps(finish_task))
        _hang()


def _waits_for_next_run(late: Point) -> Callable[[Point, int, object], None]:
    """Return the fault of the process that survives its run: it waits at a point until the next run
    has begun."""

    def wait(point: Point, task: int, finish_task: object) -> None:
        if point == late:
            put_flag("waits")
            wait_for_flag("next run")

    return wait


def _next_run(point: Point, task: int, finish_task: object) -> None:
    """Make the second run wait for the end of the surviving process before it writes anything."""
    if point == "begun":
        put_flag("next run")
        wait_for_flag("late one has ended")


FAULTS: dict[str, Callable[[Point, int, Callable[[], None] | None], None]] = {
    "worker dies": _worker_dies,
    "stops in the middle": _stops_in_the_middle,
    "one is slow": _one_is_slow,
    "one is cut off": _one_is_cut_off,
    "late before its data": _waits_for_next_run("puts"),
    "late before its commit": _waits_for_next_run("put"),
    "next run": _next_run,
}


class Same:
    """Returns the rows unchanged."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch
