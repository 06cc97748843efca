"""Runs tasks in forks of this process, a limited number at a time."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

TOO_LONG = "too long"
CRASHED = "crashed"
LIMITS = {-signal.SIGXCPU, -signal.SIGALRM}
_fork = multiprocessing.get_context("fork")


@dataclass
class _Running:
    task: Any
    process: multiprocessing.process.BaseProcess
    folder: str
    deadline: float


def in_forks(
    tasks: Iterable[Any], jobs: int, act: Callable[[Any, Path], Any], seconds: float
) -> Iterator[tuple[Any, Any]]:
    """Yield each task with the result of `act(task, folder)` in its fork, TOO_LONG or CRASHED."""
    waiting = iter(tasks)
    running: dict[connection.Connection, _Running] = {}
    while True:
        for task in itertools.islice(waiting, jobs - len(running)):
            receiver, started = _start(task, act, seconds)
            running[receiver] = started
        if not running:
            return
        ready = connection.wait(list(running), timeout=1)
        for receiver, one in list(running.items()):
            if receiver in ready or time.monotonic() > one.deadline:
                del running[receiver]
                yield one.task, _end(receiver, one)


def _start(task: Any, act: Callable[[Any, Path], Any], seconds: float) -> Any:
    receiver, sender = _fork.Pipe(duplex=False)
    folder = tempfile.mkdtemp(prefix="mutant-")
    process = _fork.Process(target=_child, args=(act, task, Path(folder), sender))
    process.start()
    sender.close()
    return receiver, _Running(task, process, folder, time.monotonic() + seconds)


def _child(act: Callable[[Any, Path], Any], task: Any, folder: Path, sender: Any) -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    sender.send(act(task, folder))


def _end(receiver: Any, one: _Running) -> Any:
    try:
        return receiver.recv() if receiver.poll() else TOO_LONG
    except EOFError:
        one.process.join(5)
        return TOO_LONG if one.process.exitcode in LIMITS else CRASHED
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid or 0, signal.SIGKILL)
        one.process.join()
        receiver.close()
        shutil.rmtree(one.folder, ignore_errors=True)
