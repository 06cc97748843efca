"""Limits how often the status of a job is written if only figures change."""

from __future__ import annotations

from typing import Any

from batchinference.spec.phases import AT_WORK
from batchinference_operator.status.status import Status

WRITE_SECONDS = 5.0
"""The minimum time between two writes that change only figures."""
_FIGURES = {"progress", "counts", "progressTime", "usageTime", "gpuSeconds", "cpuSeconds"}
_OF_ATTEMPT = {"rows", "gpuSeconds", "cpuSeconds"}


def hold(before: Status, after: Status, since: float) -> float:
    """Return the seconds by which the write of a status can be delayed.

    `since` is the number of seconds since the last write. The next reconcile computes the delayed
    status again.
    """
    goes_on = before.get("phase") == after.get("phase") and after.get("phase") in AT_WORK
    # rows are being finished, so the reason is about single workers, which come and go
    words = {"message", "reason"} if goes_on else {"message"}
    if _essence(before, words) != _essence(after, words):
        return 0.0
    return WRITE_SECONDS - min(max(since, 0.0), WRITE_SECONDS)


def _essence(status: Status, words: set[str]) -> Status:
    """Return what must be written at once; `words` are the fields of a condition that can wait."""
    left = _without(status, _FIGURES)
    for name, figures in (("attempts", _OF_ATTEMPT), ("conditions", words)):
        left[name] = [_without(one, figures) for one in status.get(name, [])]
    return left


def _without(given: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}
