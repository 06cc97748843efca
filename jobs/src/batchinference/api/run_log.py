"""The log of a run, which is stored next to the output and outlives the cluster.

The log is of bounded size. If it cannot be stored, the job does not fail."""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from batchinference.spec import BatchInference
from batchinference.spec.report import Report
from batchinference.text import in_one_line

if TYPE_CHECKING:
    from batchinference.pipeline.storage.location import Location

LOG_DIRECTORY = "logs"
MAX_BEGINNING, MAX_END = 100_000, 900_000
"""Characters that are kept of the beginning and of the end of a log."""
MAX_LINE = 4000
KEPT_LOGS = 20
"""Logs of earlier runs that are kept for each output."""


class RunLog:
    """The lines of a log: its beginning and its end."""

    def __init__(self) -> None:
        self._beginning: list[str] = []
        self._end: deque[str] = deque()
        self._left = MAX_BEGINNING
        self._size = self._dropped = 0
        self._state = ""
        self._output_before = _output_size()
        self.uri: str | None = None
        """Where the log was stored."""

    def add(self, line: str) -> None:
        """Add a line with the time."""
        self._append(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {line}")

    def add_state(self, report: Report) -> None:
        """Add the state of a run if it has changed."""
        if report.state != self._state:
            self._state = report.state
            reason = f": {report.reason}: {report.message}" if report.reason else ""
            self.add(f"{report.name}: {report.state.value}{reason}")

    def _append(self, line: str) -> None:
        line = in_one_line(line)[:MAX_LINE]
        if self._left >= len(line) and not self._end:
            self._left -= len(line)
            self._beginning.append(line)
            return
        self._end.append(line)
        self._size += len(line)
        while self._size > MAX_END:
            self._size -= len(self._end.popleft())
            self._dropped += 1

    def add_own_output(self) -> None:
        """Add the end of what was printed to stdout since the run began, if stdout is a file. This
        is the log of a driver on a cluster, to which Ray adds the output of all workers."""
        from batchinference.pipeline.errors import without_secrets

        if self._output_before is None:
            return
        with suppress(OSError), open("/proc/self/fd/1", "rb") as file:
            start = max(self._output_before, file.seek(0, os.SEEK_END) - MAX_END)
            file.seek(start)
            if start > self._output_before:
                file.readline()  # the name before a secret may be cut off
            for line in file.read(MAX_END).decode(errors="replace").splitlines():
                self._append(without_secrets(line))

    def text(self) -> str:
        """Return the log."""
        dropped = [f"... {self._dropped} lines ..."] if self._dropped else []
        return "".join(f"{line}\n" for line in (*self._beginning, *dropped, *self._end))

    def store(self, job: BatchInference, report: Report) -> None:
        """Store the log next to the output, unless the run has not written to it."""
        if report.attempt is None or not report.seconds:  # an idle run has no times
            return
        with suppress(Exception):  # storage may be the cause of the failure
            directory = log_directory(job)
            name = f"{report.started_at.replace(':', '')}-attempt-{report.attempt}.log"
            place = directory / name
            place.write(self.text().encode())
            self.uri = place.uri
            for old in stored_logs(directory)[:-KEPT_LOGS]:
                old.delete()


def _output_size() -> int | None:
    """Return the size of the file that is stdout; None if stdout is no file."""
    with suppress(OSError):
        found = os.fstat(1)
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    return None


def log_directory(job: BatchInference) -> Location:
    """Return where the logs of a job are stored."""
    from batchinference.pipeline.commit.layout import Layout

    return Layout.of(job.spec).whole.state / LOG_DIRECTORY


def stored_logs(directory: Location) -> list[Location]:
    """Return the logs in a directory, oldest first."""
    return [directory.at(path) for path in sorted(info.path for info in directory.files())]
