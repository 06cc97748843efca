"""Compares the report of a finished job with its output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from batchinference.pipeline.commit.manifest_entry import RowCounts
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.findings import Found, Kind, Spot
from batchinference.spec.report import JobState, Report


def of_report(place: Location, made: RowCounts, rows: int | None) -> Iterator[Found]:
    """Yield differences between the report and the counts of the output. `rows` is the number of
    input rows; None if it is unknown."""
    try:
        report = Report.parse(place.read())
    except (ValueError, FileNotFoundError):
        yield Kind.STATE, Spot(place.uri, detail="it is gone or damaged"), 1
        return
    if report.state is not JobState.SUCCEEDED or report.counts is None:
        yield Kind.REPORT, Spot(place.uri, detail=f"it says that the job is {report.state}"), 1
        return
    for name, there in (asdict(made) | {"read": rows}).items():
        said = getattr(report.counts, name)
        if there is not None and said != there:
            detail = f"it says {said} {name}, and it is {there}"
            yield Kind.REPORT, Spot(place.uri, detail=detail), 1
