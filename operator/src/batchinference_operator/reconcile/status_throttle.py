"""Limits how often the status of a job is written if only progress and usage change."""

from __future__ import annotations

from batchinference.spec.phases import PROCESSING_PHASES
from batchinference_operator.status.job_status import Status, without

WRITE_SECONDS = 5.0
"""Minimum seconds between two writes that change only progress and usage."""
USAGE_SECONDS = 30.0
"""Minimum seconds between two writes that change only the usage of an attempt without progress.
Pods may take minutes to start, and each change of a pod changes the usage."""
_DEFERRABLE_FIELDS = {
    *("progress", "stage", "counts", "warnings", "progressTime"),
    *("usageTime", "devices", "deviceSeconds", "cpuSeconds", "cost"),
}
_DEFERRABLE_ATTEMPT_FIELDS = {"rows", "deviceSeconds", "cpuSeconds"}


def write_delay(before: Status, after: Status, since: float) -> float:
    """Return the seconds by which a status write can be delayed.

    `since` is the number of seconds since the last write. The next reconcile computes the delayed
    status again.
    """
    in_progress = (
        before.get("phase") == after.get("phase") and after.get("phase") in PROCESSING_PHASES
    )
    # while rows are processed, reasons are about single workers and change often
    condition_fields = {"message", "reason"} if in_progress else {"message"}
    if _urgent_part(before, condition_fields) != _urgent_part(after, condition_fields):
        return 0.0
    usage_only = not in_progress and _urgent_part(before, set()) == _urgent_part(after, set())
    interval = USAGE_SECONDS if usage_only else WRITE_SECONDS
    return interval - min(max(since, 0.0), interval)


def _urgent_part(status: Status, condition_fields: set[str]) -> Status:
    """Return the part of the status that must be written at once.

    `condition_fields` are the fields of a condition that can wait.
    """
    left = without(status, *_DEFERRABLE_FIELDS)
    for name, deferrable in (
        ("attempts", _DEFERRABLE_ATTEMPT_FIELDS),
        ("conditions", condition_fields),
    ):
        left[name] = [without(one, *deferrable) for one in status.get(name, [])]
    return left
