"""Merges the reports of a run that writes several outputs of the same work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batchinference.spec.report import Report
from batchinference.spec.status import Counts, Progress


def merge_reports(before: Sequence[Report], report: Report) -> Report:
    """Return the last report, with the counts and the progress of all reports added up as far as
    the run has come. Notes are combined, and `errors` is the first one that is set. All other
    fields are those of the last report."""
    if not before:
        return report
    reports = [*before, report]
    return report.model_copy(
        update={
            "counts": _counts(each.counts for each in reports),
            "progress": _progress([each.progress for each in reports if each.progress]),
            "errors": next((each.errors for each in reports if each.errors), None),
            "notes": list(dict.fromkeys(note for each in reports for note in each.notes)),
        }
    )


def _counts(found: Iterable[Counts | None]) -> Counts:
    each = [counts.model_dump() for counts in found if counts]
    return Counts(**{name: sum(one[name] for one in each) for name in Counts.model_fields})


def _progress(each: Sequence[Progress]) -> Progress | None:
    if not each:
        return None
    totals = [one.total for one in each if one.total is not None]
    total = sum(totals) if len(totals) == len(each) else None
    rows = sum(one.rows for one in each)
    percent = None if each[-1].percent is None or not total else 100 * rows // total
    update = {"rows": rows, "total": total, "percent": percent}
    return each[-1].model_copy(update=update)
