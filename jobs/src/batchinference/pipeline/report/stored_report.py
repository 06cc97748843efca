"""Reads the stored report of a complete output, or creates one from the final snapshot."""

from datetime import UTC, datetime

from batchinference.pipeline.commit.manifest import warnings_of
from batchinference.pipeline.commit.output_paths import Layout
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
    """Return the current time in the format of reports."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def load_report(layout: Layout) -> Report:
    """Return the stored report of a complete output. If it is missing, damaged or of another
    output, create one from the final snapshot. Raises BadOutput if the snapshot is unreadable."""
    try:
        report = Report.parse(layout.report.read())
        if report.output == layout.output.uri:
            return report
    except (ValueError, FileNotFoundError):
        pass
    final = Snapshot.read(layout.final_snapshot, layout.key)
    return Report(
        name="",
        state=JobState.SUCCEEDED,
        counts=_counts(final),
        output=layout.output.uri,
        errors=layout.errors.uri if final.counts.failed else None,
        startedAt=now(),
        updatedAt=now(),
        warnings=_warnings(layout, final),
        version=__version__,
    )


def finished_report(layout: Layout, final: Snapshot) -> Report:
    """Return the final report of an output whose driver died before it wrote one. It is the last
    stored report with the state `succeeded`, and the counts and warnings of the final snapshot
    `final`. Raises BadOutput like `load_report`."""
    ended = {"state": JobState.SUCCEEDED, "reason": None, "message": None, "stage": None}
    figures = {"counts": _counts(final), "warnings": _warnings(layout, final)}
    return load_report(layout).model_copy(update={**ended, **figures})


def _warnings(layout: Layout, final: Snapshot) -> list[WarningCount]:
    """Return the warnings of an output. If the input snapshot is damaged, there are none about
    ignored files, and examples have file numbers instead of paths."""
    about_rows = warnings_of(final.entries)
    try:
        ignored = read_snapshot(layout.input, layout.output.storage, final.input).ignored
    except BadOutput:
        return with_paths(about_rows, lambda file: f"file {file}")[:MAX_WARNINGS]
    paths = paths_of(layout.input, final.input)
    counts = with_paths(about_rows, lambda file: str(paths[file].as_py()))
    return [*ignored.warnings(), *counts][:MAX_WARNINGS]


def _counts(final: Snapshot) -> Counts:
    """Return the counts of a snapshot. `read` is the number of row ids. The sum over manifest
    entries would miss input rows whose output rows are in several entries."""
    return final.counts.model_copy(update={"read": RowSet.of(final.entries).rows})
