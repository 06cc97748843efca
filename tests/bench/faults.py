"""The directed faults of checkpoint.py: what happens to a write task, on either side.

Both sides call `at` where a write task comes to a point: it has begun; it is prepared (it has its
rows, and Ray's checkpoint has put its pending file); it puts its data, and is past all looks before
that; its data is put, and not committed; it has committed. CHECKPOINT_FAULT names what happens
there, CHECKPOINT_FLAGS is a directory of files by which the processes of a run, and who watches
them, tell each other how far they are.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ray import cloudpickle

Point = Literal["begun", "prepared", "puts", "put", "committed"]
FAULT, FLAGS = "CHECKPOINT_FAULT", "CHECKPOINT_FLAGS"
CHOSEN = 1
"""The task to which it happens."""
COMMITTED_BEFORE = 20
"""Tasks that commit before a run is killed in the middle of exploded rows."""


def at(point: Point, task: int, go_on: Callable[[], None] | None = None) -> None:
    """A write task is at a point. `go_on` is all that it would do from there on."""
    if point == "committed":
        put_flag(f"committed-{task}")
    if fault := FAULTS.get(os.environ.get(FAULT, "")):
        fault(point, task, go_on)


def put_flag(name: str, content: bytes = b"") -> None:
    """It is there at once and as a whole."""
    place = Path(os.environ[FLAGS]) / name
    place.with_suffix(f".{os.getpid()}").write_bytes(content)
    place.with_suffix(f".{os.getpid()}").rename(place)


def has_flag(name: str) -> bool:
    return (Path(os.environ[FLAGS]) / name).exists()


def wait_for_flag(name: str) -> None:
    while not has_flag(name):
        time.sleep(0.02)


def _hang() -> None:
    put_flag("hangs")
    wait_for_flag("the end of the run, which is killed")


def _worker_dies(point: Point, task: int, go_on: object) -> None:
    """The worker dies right after its commit; its second try does not end."""
    if task == CHOSEN and point == "committed":
        put_flag("died")
        os.kill(os.getpid(), signal.SIGKILL)
    if task == CHOSEN and point == "put" and has_flag("died"):
        _hang()


def _stops_in_the_middle(point: Point, task: int, go_on: object) -> None:
    """Only the first tasks commit."""
    if task >= COMMITTED_BEFORE and point == "prepared":
        _hang()


def _one_is_slow(point: Point, task: int, go_on: object) -> None:
    """One task has put its data and does not commit it."""
    if task == CHOSEN and point == "put":
        _hang()


def _one_is_cut_off(point: Point, task: int, go_on: Callable[[], None] | None) -> None:
    """One task goes on elsewhere, in a process that the end of its run does not reach."""
    if task == CHOSEN and point == "prepared":
        put_flag("cut off", cloudpickle.dumps(go_on))
        _hang()


def _goes_on_late(late: Point) -> Callable[[Point, int, object], None]:
    """What the process is that was cut off: it waits at a point until the next run has begun."""

    def wait(point: Point, task: int, go_on: object) -> None:
        if point == late:
            put_flag("waits")
            wait_for_flag("next run")

    return wait


def _next_run(point: Point, task: int, go_on: object) -> None:
    """A run that lets the one that was cut off end before it writes anything."""
    if point == "begun":
        put_flag("next run")
        wait_for_flag("late one has ended")


FAULTS: dict[str, Callable[[Point, int, Callable[[], None] | None], None]] = {
    "worker dies": _worker_dies,
    "stops in the middle": _stops_in_the_middle,
    "one is slow": _one_is_slow,
    "one is cut off": _one_is_cut_off,
    "late before its data": _goes_on_late("puts"),
    "late before its commit": _goes_on_late("put"),
    "next run": _next_run,
}
