"""Reads the state of an output: progress, report, logs, and failed rows by cause."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from batchinference.pipeline.output.error_groups import ErrorGroup, group_errors, key_of_row
from batchinference.spec.history import SHOWN_RUNS, RunRecord
from batchinference.spec.progress import Counts, Progress
from batchinference.spec.report import Report
from batchinference.spec.warnings import WarningCount

if TYPE_CHECKING:
    import pyarrow as pa

    from batchinference.pipeline.storage.location import Location
    from batchinference.pipeline.verify.jobs import StoredJob

_SHOWN = ("id", "path", "row", "step", "error", "values")
"""The fields of an error record that are shown."""
MAX_VALUE = 50_000
"""Maximum characters of a value of an error record. Others may have written it."""
MAX_RECORDS = 20
"""Maximum number of error records of one row: those of the rows that it has become."""
HEARTBEAT_SECONDS = 30.0
"""Age of the last heartbeat after which a run counts as dead."""
LEVELS = 4
"""How many directories below a directory are searched for outputs."""


@dataclass(frozen=True)
class OutputStatus:
    """The state of an output."""

    output: str
    state: str
    """`complete`, `running` or `unfinished`."""
    progress: Progress
    counts: Counts
    attempt: int
    job: str
    """The job that wrote last, and the place where it ran."""
    heartbeat_age: float | None = None
    """Seconds since the last heartbeat of a run that is not complete."""
    last_error: str | None = None
    logs: list[str] = field(default_factory=list)
    starting: bool = False
    """Whether a run is in progress that has not finished a row yet."""
    report: Report | None = field(default=None, repr=False)
    """The report of the last run that has ended; None if it is missing or damaged."""

    @property
    def warnings(self) -> list[WarningCount]:
        """Differences between the input and the output, according to the report."""
        return self.report.warnings if self.report else []


def stored_jobs(output: str) -> list[StoredJob]:
    """Return the jobs that have written to an output. Raises JobFailure if there are none."""
    from batchinference.pipeline.errors import BadInput
    from batchinference.pipeline.storage.location import Location
    from batchinference.pipeline.verify.jobs import stored_job, stored_layouts

    found = [work for place in stored_layouts(Location(output)) if (work := stored_job(place))]
    if not found:
        raise BadInput(f"'{output}': the job has not begun to write yet")
    return found


def status_of(output: str) -> list[OutputStatus]:
    """Return the state of each job that has written to an output. Raises JobFailure."""
    return [_status(output, work) for work in stored_jobs(output)]


def _status(output: str, work: StoredJob) -> OutputStatus:
    (counts, new), report = _counts(work), _report_of(work)
    age = None if work.finished else _heartbeat_age(work)
    running = age is not None and age < HEARTBEAT_SECONDS and not _has_ended(work, report)
    ended = "complete" if work.finished else "unfinished"
    failed = report if report and report.reason and not running else None
    return OutputStatus(
        output,
        "running" if running else ended,
        _progress(work, counts.read, report),
        counts,
        work.lease.attempt,
        work.lease.job,
        age,
        f"{failed.reason}: {failed.message}" if failed else None,
        [log.uri for log in logs_of(work)],
        running and not new,
        report,
    )


def _has_ended(work: StoredJob, report: Report | None) -> bool:
    """Return whether the last run has reported its end, or its process has died."""
    from batchinference.pipeline.commit.lease import is_dead

    ended = report is not None and report.attempt == work.lease.attempt and report.state.ended
    return ended or is_dead(work.lease.process)


def _counts(work: StoredJob) -> tuple[Counts, int]:
    """Return the counts of the committed rows, without reading every manifest, and the number of
    rows that the last attempt has finished, if the output is not complete."""
    from batchinference.pipeline.commit.attempt import Attempt, start_of
    from batchinference.pipeline.commit.snapshot import Snapshot

    if work.finished:
        return work.committed().counts, 0
    start = Snapshot.read(start_of(work.layout, work.lease), work.layout.key)
    added = Attempt(work.layout, work.lease).counts()
    return start.counts + added, added.read


def _progress(work: StoredJob, rows: int, report: Report | None) -> Progress:
    """Return the progress of an output with these rows. Its total is that of the report or of the
    file statistics."""
    if work.finished:
        last = report.progress if report else None
        return Progress.of(rows, rows, rate=last.rows_per_second if last else None)
    if report is not None and (last := report.progress) is not None and last.total:
        return Progress.of(rows, last.total, estimated=bool(last.estimated))
    return Progress.of(rows, _total(work))


def _total(work: StoredJob) -> int | None:
    """Return the number of input rows from the statistics of files; None if it is unknown."""
    from batchinference.pipeline.errors import JobFailure
    from batchinference.pipeline.input.input_snapshot import read_snapshot

    try:
        frozen = read_snapshot(work.layout.input, work.storage_of_input)
    except (JobFailure, OSError, ValueError):
        return None
    stats = frozen.stats
    complete = len(stats) == len(frozen)
    return sum(each.rows for each in stats.values()) if complete and stats else frozen.rows


def _report_of(work: StoredJob) -> Report | None:
    """Return the stored report of a job; None if it is missing or damaged."""
    try:
        return Report.parse(work.layout.report.read())
    except (OSError, ValueError):
        return None


def _heartbeat_age(work: StoredJob) -> float | None:
    from batchinference.pipeline.commit.heartbeat import heartbeat_file

    written = heartbeat_file(work.layout, work.lease).info().mtime
    return None if written is None else max(0.0, time.time() - written.timestamp())


def report_page(output: str) -> Location | None:
    """Return the HTML report of the job that has written to an output last; None if there is none.

    Raises JobFailure."""
    pages = [work.layout.report_page for work in stored_jobs(output)]
    return next((page for page in reversed(pages) if page.exists()), None)


def outputs_below(directory: str) -> list[str]:
    """Return the outputs in a directory and at most LEVELS below it, sorted. An output has no
    outputs in it.

    Raises JobFailure if the directory does not exist, and OSError if it cannot be read."""
    from batchinference.pipeline.errors import BadInput
    from batchinference.pipeline.storage.location import Location

    root = Location(directory)
    if root.local and not root.exists():
        raise BadInput(f"'{directory}' does not exist")
    return sorted(place.uri for place in _outputs_in(root, LEVELS))


def _outputs_in(directory: Location, levels: int) -> Iterator[Location]:
    from batchinference.pipeline.commit.layout import STATE_DIRECTORY
    from batchinference.pipeline.storage.location import base_name

    inside = {base_name(each.path): each for each in directory.directories()}
    if STATE_DIRECTORY in inside:
        yield directory
    elif levels:
        for name in sorted(inside):
            if not name.startswith("."):
                yield from _outputs_in(inside[name], levels - 1)


def history_of(output: str, most: int = SHOWN_RUNS) -> list[RunRecord]:
    """Return the last runs that have written to an output, oldest first. Raises JobFailure."""
    from batchinference.pipeline.report.history import read_history

    return read_history(stored_jobs(output)[0].layout.history, most)


def logs_of(work: StoredJob) -> list[Location]:
    """Return the stored logs of an output, oldest first."""
    from batchinference.api.run_log import LOG_DIRECTORY, stored_logs

    return stored_logs(work.layout.whole.state / LOG_DIRECTORY)


def last_log(output: str) -> str:
    """Return the log of the last run. Raises JobFailure if there is none."""
    from batchinference.pipeline.errors import BadInput

    logs = logs_of(stored_jobs(output)[0])
    if not logs:
        raise BadInput(f"'{output}' has no log: no run has stored one yet")
    return logs[-1].read().decode(errors="replace")


def error_tables(output: str) -> Iterator[pa.Table]:
    """Yield tables with the error records of an output. Raises JobFailure."""
    from batchinference.pipeline.output.error_records import read_error_records

    for work in stored_jobs(output):
        yield from read_error_records(work.layout, work.committed().entries)


def error_groups(output: str) -> list[ErrorGroup]:
    """Return the failed rows of an output by step and cause. Raises JobFailure."""
    return group_errors(_error_rows(output))


def failed_row(output: str, key: str) -> list[dict[str, Any]]:
    """Return the error records of the row with this `key_of_row`, with their tracebacks; none if
    there are none.

    Raises JobFailure."""
    row_id = key.rpartition("-")[0]
    found = (
        record
        for table in error_tables(output)
        for number, one in enumerate(table["id"].to_pylist())
        if one == row_id
        for row in table.slice(number, 1).to_pylist()
        if key_of_row(record := {name: _short(value) for name, value in row.items()}) == key
    )
    return list(islice(found, MAX_RECORDS))


def _error_rows(output: str) -> Iterator[dict[str, Any]]:
    """Yield the shown values of each error record, with texts of at most MAX_VALUE characters."""
    for table in error_tables(output):
        shown = table.select([name for name in _SHOWN if name in table.column_names])
        for row in shown.to_pylist():
            yield {name: _short(row.get(name)) for name in _SHOWN}


def _short(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else str(value)[:MAX_VALUE]
