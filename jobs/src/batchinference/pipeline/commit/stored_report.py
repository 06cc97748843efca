"""The report that lies beside a complete output."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

from batchinference import __version__
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.row_set import RowSet
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.spec.report import JobState, Report
from batchinference.spec.status import Counts


def load_report(done: Layout) -> Report:
    """As the job has left it; where it is gone, damaged or another output's, made anew from what
    this output holds. Raises BadOutput when that cannot be told either."""
    try:
        report = Report.parse(done.report.read())
        if report.output == done.output.uri:
            return report
    except (ValueError, FileNotFoundError):
        pass
    return _made_anew(done, Snapshot.read(done.end, done.key))


def finished_report(done: Layout, end: Snapshot) -> Report:
    """The report that a driver had not come to, of an output that holds this: what it has left,
    with the end that it did not see. Raises BadOutput as above."""
    ended = {"state": JobState.SUCCEEDED, "reason": None, "message": None, "stage": None}
    return load_report(done).model_copy(update={**ended, "counts": _counts(end)})


def _made_anew(done: Layout, end: Snapshot) -> Report:
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
    """Rows that became several may lie in several pieces, none of which can count them."""
    return Counts(**asdict(end.counts) | {"read": RowSet.of(end.pieces).rows})
