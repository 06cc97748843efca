"""Stores the log of a run next to the output, where it outlives the cluster.

The size of the log is limited. A job does not fail if its log cannot be stored.
"""

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
"""Maximum characters of the beginning and of the end of a log. The middle is dropped."""
MAX_LINE = 4000
KEPT_LOGS = 20
"""Maximum number of logs per output. Older logs are deleted."""


class RunLog:
    """The first and the last lines of a log."""

    def __init__(self) -> None:
        self._beginning: list[str] = []
        self._end: deque[str] = deque()
        self._left = MAX_BEGINNING
        self._size = self._dropped = 0
        self._state = ""
        self._stdout_start = _stdout_size()
        self.uri: str | None = None
        """Where the log was stored."""

    def add(self, line: str) -> None:
        """Add a line, with the current time."""
        self._append(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {line}")

    def add_state(self, report: Report) -> None:
        """Add a line for the state of a run if the state has changed."""
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
        """Add the last output of this process since the run began, if stdout is a file.

        On a cluster, this file is the log of the driver, to which Ray adds the output of all
        workers.
        """
        from batchinference.pipeline.errors import without_secrets

        if self._stdout_start is None:
            return
        with suppress(OSError), open("/proc/self/fd/1", "rb") as file:
            start = max(self._stdout_start, file.seek(0, os.SEEK_END) - MAX_END)
            file.seek(start)
            if start > self._stdout_start:
                file.readline()  # a partial line may lack the name by which a secret is masked
            for line in file.read(MAX_END).decode(errors="replace").splitlines():
                self._append(without_secrets(line))

    def text(self) -> str:
        """Return the log as text."""
        dropped = [f"... {self._dropped} lines ..."] if self._dropped else []
        return "".join(f"{line}\n" for line in (*self._beginning, *dropped, *self._end))

    def store(self, job: BatchInference, report: Report) -> None:
        """Store the log next to the output, unless the run has not written to it."""
        if report.attempt is None or not report.seconds:  # a run with nothing to do has no times
            return
        with suppress(Exception):  # storage may be the cause of the failure
            directory = log_directory(job)
            name = f"{report.started_at.replace(':', '')}-attempt-{report.attempt}.log"
            place = directory / name
            place.write(self.text().encode())
            self.uri = place.uri
            for old in stored_logs(directory)[:-KEPT_LOGS]:
                old.delete()


def _stdout_size() -> int | None:
    """Return the size of stdout in bytes if it is a file, otherwise None."""
    with suppress(OSError):
        found = os.fstat(1)
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    return None


def log_directory(job: BatchInference) -> Location:
    """Return the directory of the logs of a job."""
    from batchinference.pipeline.commit.layout import Layout

    return Layout.of(job.spec).whole.state / LOG_DIRECTORY


def stored_logs(directory: Location) -> list[Location]:
    """Return the logs in a directory, oldest first."""
    return [directory.at(path) for path in sorted(info.path for info in directory.files())]
