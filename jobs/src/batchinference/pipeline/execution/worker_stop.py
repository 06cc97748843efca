"""Requests the processes of a pass to stop, through the control store of the Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import uniform
from threading import Event, Thread

from batchinference.pipeline.execution.crash_notes import forget_notes
from batchinference.pipeline.ray_compat import has_flag, set_flag
from batchinference.pipeline.row_batch import RowBatch
from batchinference.spec.lifecycle import DRAIN_SECONDS
from batchinference.spec.reserved import END_VARIABLE

POLL_SECONDS = (1.5, 2.5)
"""Seconds until a process looks for a request again: a random number in this range. The processes
of a large cluster must not ask Ray's control store all at the same time."""


def until_stopped(results: Iterator[RowBatch], stopping: Event) -> Iterator[RowBatch]:
    """Yield results until `stopping` is set. A further result might wait for requests of the
    reader."""
    for result in results:
        yield result
        if stopping.is_set():
            return


@dataclass(frozen=True)
class StopRequest:
    """A request to the processes of a pass to stop. `run` is the ID of the pass (`Lease.run`).
    `ray.cancel` is not used. Ray 2.60 aborts the driver if it cancels a task that just starts or
    ends ("Tried to complete task that was not pending")."""

    run: str
    poll_seconds: tuple[float, float] = POLL_SECONDS
    drain_seconds: float = DRAIN_SECONDS
    """How long tasks may commit their results. Afterwards, user code is assumed to hang."""

    @property
    def _name(self) -> str:
        return f"batchinference-stop-{self.run}"

    def send(self) -> None:
        """Request the processes of the pass to stop. Raises an error if Ray does not answer."""
        set_flag(self._name)

    def is_sent(self) -> bool:
        """Return whether the request was sent. Raises an error if Ray does not answer."""
        return has_flag(self._name)

    def _stops(self) -> bool:
        """Return whether this process must stop: the request was sent, or its pod ends."""
        file = os.environ.get(END_VARIABLE, "")
        if file and Path(file).exists():
            return True
        with suppress(Exception):  # Ray may answer the next time
            return self.is_sent()
        return False

    @contextmanager
    def stop_event(self) -> Iterator[Event]:
        """Yield an event that is set soon after the request is sent. The process exits if the block
        does not end within `drain_seconds` afterwards."""
        requested, ended = Event(), Event()
        watch = partial(self._watch, requested, ended)
        Thread(target=watch, name="stop", daemon=True).start()
        try:
            yield requested
        finally:
            ended.set()

    def watched_for_ever(self) -> Event:
        """Return an event that is set soon after the request is sent. Actors use it, because
        `stop_event` would start a thread for each of their many calls."""
        requested = Event()
        poll = partial(self._poll, requested, Event())
        Thread(target=poll, name="stop", daemon=True).start()
        return requested

    def _watch(self, requested: Event, ended: Event) -> None:
        self._poll(requested, ended)
        if requested.is_set() and not ended.wait(self.drain_seconds):
            forget_notes()
            os._exit(1)

    def _poll(self, requested: Event, ended: Event) -> None:
        while not ended.wait(uniform(*self.poll_seconds)):  # noqa: S311
            if self._stops():
                requested.set()
                return
