"""Reads the status of an output: progress, report, logs, and failed rows by cause."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from batchinference.pipeline.errors import BadInput, JobFailure
from batchinference.pipeline.output.error_groups import ErrorGroup, group_errors, key_of_row
from batchinference.spec.history import SHOWN_RUNS, RunRecord
from batchinference.spec.progress import Counts, Progress
from batchinference.spec.report import Report
from batchinference.spec.warnings import WarningCount
from batchinference.text import cut

if TYPE_CHECKING:
    import pyarrow as pa

    from batchinference.pipeline.storage.location import Location
    from batchinference.pipeline.verify.stored_jobs import StoredJob

_SHOWN_FIELDS = ("id", "path", "row", "step", "error", "values")
"""The fields of an error record that are shown."""
MAX_VALUE = 50_000
"""Maximum number of characters of a value in an error record. `...` replaces the rest. Values are
not trusted, so they may be very long."""
MAX_RECORDS = 20
"""Maximum number of error records that are shown for one input row. A step may turn an input row
into several rows, and each of them may fail."""
HEARTBEAT_SECONDS = 30.0
"""Maximum age of the last heartbeat of a run. If the heartbeat is older, the run is dead."""
SEARCH_DEPTH = 4
"""Maximum depth below a directory in which outputs are searched."""


@dataclass(frozen=True)
class OutputStatus:
    """The status of the rows that one job has written to an output."""

    output: str
    state: str
    """`complete`, `running` or `unfinished`."""
    progress: Progress
    counts: Counts
    pass_number: int
    job: str
    """A text with the job of the last run, and the place where it ran."""
    heartbeat_age: float | None = None
    """Seconds since the last heartbeat of a job that is not complete."""
    last_error: str | None = None
    logs: list[str] = field(default_factory=list)
    starting: bool = False
    """Whether a run is in progress and has not finished a row yet."""
    report: Report | None = field(default=None, repr=False)
    """The report of the last run that has ended; None if it is missing or damaged."""

    @property
    def warnings(self) -> list[WarningCount]:
        """The warnings in the report, for example that values were cut."""
        return self.report.warnings if self.report else []


def stored_jobs(output: str) -> list[StoredJob]:
    """Return the jobs that have written to an output. Raises JobFailure if there are none."""
    from batchinference.pipeline.storage.location import Location
    from batchinference.pipeline.verify.stored_jobs import stored_job, stored_layouts

    jobs = [job for layout in stored_layouts(Location(output)) if (job := stored_job(layout))]
    if not jobs:
        raise BadInput(f"'{output}': the job has not begun to write yet")
    return jobs


def status_of(output: str) -> list[OutputStatus]:
    """Return the status of each job that has written to an output. Raises JobFailure."""
    return [_status(output, job) for job in stored_jobs(output)]


def _status(output: str, job: StoredJob) -> OutputStatus:
    (counts, rows_of_pass), report = _counts(job), _report_of(job)
    age = None if job.finished else _heartbeat_age(job)
    running = age is not None and age < HEARTBEAT_SECONDS and not _has_stopped(job, report)
    ended = "complete" if job.finished else "unfinished"
    failure = report if report and report.reason and not running else None
    return OutputStatus(
        output,
        "running" if running else ended,
        _progress(job, counts.read, report),
        counts,
        job.lease.pass_number,
        job.lease.job,
        age,
        f"{failure.reason}: {failure.message}" if failure else None,
        [log.uri for log in logs_of(job)],
        running and not rows_of_pass,
        report,
    )


def _has_stopped(job: StoredJob, report: Report | None) -> bool:
    """Return whether the last run has reported its end or its process has died."""
    from batchinference.pipeline.commit.lease import is_dead

    if report and report.pass_number == job.lease.pass_number and report.state.ended:
        return True
    return is_dead(job.lease.process)


def _counts(job: StoredJob) -> tuple[Counts, int]:
    """Return the counts of all committed rows, and the number of rows that the last pass has
    finished. If the output is complete, this number is 0. Does not read every manifest."""
    from batchinference.pipeline.commit.job_pass import JobPass, start_file
    from batchinference.pipeline.commit.snapshot import Snapshot

    if job.finished:
        return job.committed().counts, 0
    start = Snapshot.read(start_file(job.layout, job.lease), job.layout.key)
    added = JobPass(job.layout, job.lease).counts()
    return start.counts + added, added.read


def _progress(job: StoredJob, rows: int, report: Report | None) -> Progress:
    """Return the progress of an output with `rows` finished rows. The total of an incomplete output
    comes from the report. Without a report, it comes from file statistics."""
    if job.finished:
        last = report.progress if report else None
        return Progress.of(rows, rows, rate=last.rows_per_second if last else None)
    if report is not None and (last := report.progress) is not None and last.total:
        return Progress.of(rows, last.total, estimated=bool(last.estimated))
    return Progress.of(rows, _total(job))


def _total(job: StoredJob) -> int | None:
    """Return the number of input rows according to file statistics; None if it is unknown."""
    from batchinference.pipeline.input.input_snapshot import read_snapshot

    try:
        snapshot = read_snapshot(job.layout.input, job.storage_of_input)
    except (JobFailure, OSError, ValueError):
        return None
    stats = snapshot.stats
    complete = len(stats) == len(snapshot)
    return sum(each.rows for each in stats.values()) if complete and stats else snapshot.rows


def _report_of(job: StoredJob) -> Report | None:
    try:
        return Report.parse(job.layout.report.read())
    except (OSError, ValueError):
        return None


def _heartbeat_age(job: StoredJob) -> float | None:
    from batchinference.pipeline.commit.heartbeat import heartbeat_file

    written = heartbeat_file(job.layout, job.lease).info().mtime
    return None if written is None else max(0.0, time.time() - written.timestamp())


def report_page(output: str) -> Location | None:
    """Return the newest HTML report of an output; None if there is none. Raises JobFailure."""
    pages = [job.layout.report_page for job in stored_jobs(output)]
    return next((page for page in reversed(pages) if page.exists()), None)


def outputs_below(directory: str) -> list[str]:
    """Return the sorted outputs in a directory and up to SEARCH_DEPTH levels below. Does not search
    outputs and hidden directories. Raises OSError, and JobFailure if the directory is missing."""
    from batchinference.pipeline.storage.location import Location

    root = Location(directory)
    if root.local and not root.exists():
        raise BadInput(f"'{directory}' does not exist")
    return sorted(output.uri for output in _outputs_in(root, SEARCH_DEPTH))


def _outputs_in(directory: Location, levels: int) -> Iterator[Location]:
    from batchinference.pipeline.commit.output_paths import STATE_DIRECTORY
    from batchinference.pipeline.storage.location import base_name

    inside = {base_name(each.path): each for each in directory.directories()}
    if STATE_DIRECTORY in inside:
        yield directory
    elif levels:
        for name in sorted(inside):
            if not name.startswith("."):
                yield from _outputs_in(inside[name], levels - 1)


def history_of(output: str, limit: int = SHOWN_RUNS) -> list[RunRecord]:
    """Return the last runs that have written to an output, oldest first. Raises JobFailure."""
    from batchinference.pipeline.report.history import read_history

    return read_history(stored_jobs(output)[0].layout.history, limit)


def logs_of(job: StoredJob) -> list[Location]:
    """Return the stored logs of an output, oldest first."""
    from batchinference.api.run_log import LOG_DIRECTORY, stored_logs

    return stored_logs(job.layout.main.state / LOG_DIRECTORY)


def last_log(output: str) -> str:
    """Return the log of the last run. Raises JobFailure if there is none."""
    logs = logs_of(stored_jobs(output)[0])
    if not logs:
        raise BadInput(f"'{output}' has no log: no run has stored one yet")
    return logs[-1].read().decode(errors="replace")


def error_tables(output: str) -> Iterator[pa.Table]:
    """Yield tables with the error records of an output. Raises JobFailure."""
    from batchinference.pipeline.output.error_records import read_error_records

    for job in stored_jobs(output):
        yield from read_error_records(job.layout, job.committed().entries)


def error_groups(output: str) -> list[ErrorGroup]:
    """Return the failed rows of an output by step and cause. Raises JobFailure."""
    return group_errors(_error_rows(output))


def failed_row(output: str, key: str, max_records: int = MAX_RECORDS) -> list[dict[str, Any]]:
    """Return up to `max_records` error records, with tracebacks, of the row with this `key` (see
    `key_of_row`). Raises JobFailure."""
    row_id = key.rpartition("-")[0]
    records = (
        record
        for table in error_tables(output)
        for number, one in enumerate(table["id"].to_pylist())
        if one == row_id
        for row in table.slice(number, 1).to_pylist()
        if key_of_row(record := {name: _short(value) for name, value in row.items()}) == key
    )
    return list(islice(records, max_records))


def _error_rows(output: str) -> Iterator[dict[str, Any]]:
    """Yield the _SHOWN_FIELDS of each error record, with texts of at most MAX_VALUE characters."""
    for table in error_tables(output):
        shown = table.select([name for name in _SHOWN_FIELDS if name in table.column_names])
        for row in shown.to_pylist():
            yield {name: _short(row.get(name)) for name in _SHOWN_FIELDS}


def _short(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else cut(str(value), MAX_VALUE)
