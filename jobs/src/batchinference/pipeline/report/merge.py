"""Merges the reports of the outputs of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batchinference.spec.progress import Counts, Progress
from batchinference.spec.report import MAX_WARNINGS, Report
from batchinference.spec.warnings import WarningCount


def merge_reports(before: Sequence[Report], report: Report) -> Report:
    """Return the last report with the sums of the counts, retries and progress of all reports.
    Notes are combined, and `errors` is the first one that is set. All other fields come from the
    last report."""
    if not before:
        return report
    reports = [*before, report]
    parts = [item.progress for item in reports if item.progress]
    return report.model_copy(
        update={
            "counts": Counts.sum(item.counts for item in reports if item.counts),
            "progress": Progress.sum(parts) if parts else None,
            "errors": next((item.errors for item in reports if item.errors), None),
            "retries": sum(item.retries for item in reports),
            "output_bytes": sum(item.output_bytes or 0 for item in reports) or None,
            "notes": list(dict.fromkeys(note for item in reports for note in item.notes)),
            "warnings": sum_warnings(warning for item in reports for warning in item.warnings),
        }
    )


def sum_warnings(warnings: Iterable[WarningCount]) -> list[WarningCount]:
    """Return the sums by name and step, with the first example. Of warnings that count files, which
    each addition lists again, return the one with the most."""
    sums: dict[tuple[str, str | None], WarningCount] = {}
    for warning in warnings:
        key = warning.name, warning.step
        sums[key] = _both(sums[key], warning) if key in sums else warning
    return list(sums.values())[:MAX_WARNINGS]


def _both(first: WarningCount, second: WarningCount) -> WarningCount:
    if first.step is None:
        return max(first, second, key=lambda warning: warning.count)
    amounts = [each.amount for each in (first, second) if each.amount is not None]
    added = {"count": first.count + second.count, "amount": sum(amounts) or None}
    return first.model_copy(update=added)
