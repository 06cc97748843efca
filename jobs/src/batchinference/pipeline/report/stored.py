"""Reads the stored report of an output, or creates one from its snapshot."""

from __future__ import annotations

from datetime import UTC, datetime

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import warnings_of
from batchinference.pipeline.commit.row_coverage import RowSet
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.warning_counts import with_paths
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.input.input_snapshot import paths_of, read_snapshot
from batchinference.spec.progress import Counts
from batchinference.spec.report import MAX_WARNINGS, JobState, Report
from batchinference.spec.warnings import WarningCount
from batchinference.version import __version__


def now() -> str:
    """Return the time as in a report."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def load_report(done: Layout) -> Report:
    """Return the report that the job has stored. If it is missing, damaged or belongs to another
    output, create one from the snapshot of this output. Raises BadOutput if that cannot be read
    either."""
    try:
        report = Report.parse(done.report.read())
        if report.output == done.output.uri:
            return report
    except (ValueError, FileNotFoundError):
        pass
    end = Snapshot.read(done.end, done.key)
    return Report(
        name="",
        state=JobState.SUCCEEDED,
        counts=_counts(end),
        output=done.output.uri,
        errors=done.errors.uri if end.counts.failed else None,
        startedAt=now(),
        updatedAt=now(),
        warnings=_warnings(done, end),
        version=__version__,
    )


def finished_report(done: Layout, end: Snapshot) -> Report:
    """Return the final report of an output with the snapshot `end`, if the driver died before it
    wrote one: the stored report with the state, counts and warnings of a succeeded job. Raises
    BadOutput like `load_report`."""
    ended = {"state": JobState.SUCCEEDED, "reason": None, "message": None, "stage": None}
    final = {"counts": _counts(end), "warnings": _warnings(done, end)}
    return load_report(done).model_copy(update={**ended, **final})


def _warnings(done: Layout, end: Snapshot) -> list[WarningCount]:
    """Return the warnings of an output with the snapshot `end`. If the list of its input files is
    damaged, those about files are unknown, and the examples have the numbers of files."""
    about_rows = warnings_of(end.entries)
    try:
        ignored = read_snapshot(done.input, done.output.storage, end.input).ignored
    except BadOutput:
        return with_paths(about_rows, lambda file: f"file {file}")[:MAX_WARNINGS]
    paths = paths_of(done.input)
    counts = with_paths(about_rows, lambda file: str(paths[file].as_py()))
    return [*ignored.warnings(), *counts][:MAX_WARNINGS]


def _counts(end: Snapshot) -> Counts:
    """Return the counts of a snapshot. If a row became several rows, these may be in several
    manifest entries, none of which can count it. So `read` is counted from the row ids."""
    return end.counts.model_copy(update={"read": RowSet.of(end.entries).rows})
