"""Stores the log of a run in the state directory of the output, where it outlives the cluster.

While the job runs, its last lines are stored every minute. These lines remain if the process is
killed. A job does not fail if its log cannot be stored."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from batchinference.credentials import LineMasker
from batchinference.spec import BatchInference
from batchinference.spec.report import Report
from batchinference.text import cut, in_one_line, without_controls

if TYPE_CHECKING:
    from batchinference.pipeline.storage.location import Location

LOG_DIRECTORY = "logs"
MAX_BEGINNING, MAX_END = 100_000, 900_000
"""Maximum number of characters of the beginning and of the end of a log. The lines between them are
dropped."""
MAX_LINE = 4000
"""Maximum number of characters of a line. `...` replaces the rest."""
KEPT_LOGS = 20
"""Maximum number of logs per output. Older logs are deleted."""
FIRST_COPY_SECONDS, COPY_SECONDS = 10.0, 60.0
"""Seconds from the start of a run to the first copy of its log, and between copies."""
MAX_COPY = 64_000
"""A copy has at most this number of characters of the log, and the lines in this number of bytes of
what this process has printed."""
_TIME = "%Y-%m-%dT%H:%M:%SZ"
UNFINISHED = "the run had not ended when this was stored"


class RunLog:
    """The log of a run. Only its beginning and its end are kept. `clock` returns the time in
    seconds. The other arguments are the limits MAX_BEGINNING, MAX_END and MAX_COPY."""

    def __init__(
        self,
        max_beginning: int = MAX_BEGINNING,
        max_end: int = MAX_END,
        max_copy: int = MAX_COPY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_end, self._max_copy, self._clock = max_end, max_copy, clock
        self._beginning: list[str] = []
        self._end: deque[str] = deque()
        self._room = max_beginning
        self._end_size = self._dropped = 0
        self._state = ""
        self._stdout_start = _stdout_size()
        self._next_copy = clock() + FIRST_COPY_SECONDS
        self._file: Location | None = None
        self.uri: str | None = None
        """The address of the stored log; None if it was not stored."""

    def add(self, line: str) -> None:
        """Add a line, with the current time."""
        self._append(f"{datetime.now(UTC):{_TIME}} {line}")

    def add_state(self, report: Report) -> None:
        """Add a line for the state of a run if the state has changed."""
        if report.state != self._state:
            self._state = report.state
            reason = f": {report.reason}: {report.message}" if report.reason else ""
            self.add(f"{report.name}: {report.state.value}{reason}")

    def _append(self, line: str) -> None:
        line = _shortened(line)
        if self._room >= len(line) and not self._end:
            self._room -= len(line)
            self._beginning.append(line)
            return
        self._end.append(line)
        self._end_size += len(line)
        while self._end_size > self._max_end:
            self._end_size -= len(self._end.popleft())
            self._dropped += 1

    def add_own_output(self) -> None:
        """Add the last lines that this process has printed in this run, if stdout is a file."""
        for line in self._own_output(self._max_end):
            self._append(line)

    def _own_output(self, max_bytes: int) -> list[str]:
        """Return the last lines that this process has printed since the run began; empty if stdout
        is no file. On a cluster, stdout is the log of the driver, to which Ray adds the output of
        workers."""
        if self._stdout_start is None:
            return []
        with suppress(OSError), open("/proc/self/fd/1", "rb") as file:
            start = max(self._stdout_start, file.seek(0, os.SEEK_END) - max_bytes)
            file.seek(start)
            if start > self._stdout_start:
                file.readline()  # in a line without its beginning, a secret may not be recognized
            lines = file.read(max_bytes).decode(errors="replace").splitlines()
            return list(map(LineMasker(), map(without_controls, lines)))
        return []

    def text(self) -> str:
        """Return the log as text, with one line in place of the dropped lines."""
        dropped = [f"... {self._dropped} lines ..."] if self._dropped else []
        return "".join(f"{line}\n" for line in (*self._beginning, *dropped, *self._end))

    def store_so_far(self, job: BatchInference, report: Report, *, own_output: bool) -> None:
        """Store the last lines of a run that has not ended, at most once a minute. `own_output`
        adds what this process has printed. At the end, `store` replaces the file."""
        if self._clock() < self._next_copy or not _has_begun(report):
            return
        self._next_copy = self._clock() + COPY_SECONDS
        with suppress(Exception):
            own = self._own_output(self._max_copy) if own_output else []
            lines = "".join(f"{_shortened(line)}\n" for line in own)
            text, now = self.text(), f"{datetime.now(UTC):{_TIME}}"
            if len(text) > self._max_copy:
                text = text[-self._max_copy :].partition("\n")[2]  # drops a partial first line
            self._write(job, report, f"{text}{lines}... {UNFINISHED} ({now}) ...\n")

    def store(self, job: BatchInference, report: Report) -> None:
        """Store the log if the run writes to the output, and delete the oldest logs."""
        if not _has_begun(report):
            return
        with suppress(Exception):  # the job may have failed because of the storage
            self._write(job, report, self.text())
            for old in stored_logs(log_directory(job))[:-KEPT_LOGS]:
                old.delete()

    def _write(self, job: BatchInference, report: Report, text: str) -> None:
        """Write the log file of this run, and delete its earlier file if the name differs."""
        started = report.started_at.replace(":", "")
        file = log_directory(job) / f"{started}-pass-{report.pass_number}.log"
        file.write(text.encode())
        if self._file is not None and self._file != file:
            self._file.delete()
        self._file, self.uri = file, file.uri


def _shortened(line: str) -> str:
    return cut(in_one_line(line), MAX_LINE)


def _has_begun(report: Report) -> bool:
    """Return whether a run writes to the output. If it has nothing to write, `seconds` is empty."""
    return report.pass_number is not None and bool(report.seconds)


def _stdout_size() -> int | None:
    """Return the size of stdout in bytes; None if stdout is not a regular file."""
    with suppress(OSError):
        info = os.fstat(1)
        return info.st_size if stat.S_ISREG(info.st_mode) else None
    return None


def log_directory(job: BatchInference) -> Location:
    """Return the directory of the logs of a job."""
    from batchinference.pipeline.commit.output_paths import STATE_DIRECTORY
    from batchinference.pipeline.storage.location import Location

    output = Location(job.spec.write.path, job.spec.write.storage)
    return (output / STATE_DIRECTORY).without_links_below(output) / LOG_DIRECTORY


def stored_logs(directory: Location) -> list[Location]:
    """Return the logs in a directory, oldest first."""
    return [directory.at(path) for path in sorted(info.path for info in directory.files())]
