"""The report that is stored with a complete output."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

from batchinference import __version__
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.row_coverage import RowSet
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.spec.report import JobState, Report
from batchinference.spec.status import Counts


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
    return _from_snapshot(done, Snapshot.read(done.end, done.key))


def finished_report(done: Layout, end: Snapshot) -> Report:
    """Return the final report of an output that holds `end`, if the driver died before it wrote
    one: the stored report, with the state and counts of a succeeded job. Raises BadOutput like
    `load_report`."""
    ended = {"state": JobState.SUCCEEDED, "reason": None, "message": None, "stage": None}
    return load_report(done).model_copy(update={**ended, "counts": _counts(end)})


def _from_snapshot(done: Layout, end: Snapshot) -> Report:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Report(
        name="",
        state=JobState.SUCCEEDED,
        counts=_counts(end),
        output=done.output.uri,
        errors=done.errors.uri if end.counts.failed else None,
        startedAt=now,
        updatedAt=now,
        version=__version__,
    )


def _counts(end: Snapshot) -> Counts:
    """Return the counts of a snapshot. If a row became several rows, these may be in several
    manifest entries, none of which can count it. So `read` is counted from the row ids."""
    return Counts(**asdict(end.counts) | {"read": RowSet.of(end.entries).rows})
