"""Limits the number of status writes of a job: changes that are not urgent wait."""

from batchinference.spec.status import PROCESSING_PHASES
from batchinference_operator.status.job_status import Status, internal, without

WRITE_SECONDS = 5.0
"""Minimum seconds between two status writes that are not urgent (`_urgent_part`)."""
USAGE_SECONDS = 30.0
"""Minimum seconds between two status writes that change only usage, while no rows are processed.
Pods may take minutes to start, and usage changes with each pod."""
_DEFERRABLE_FIELDS = {
    *("progress", "stage", "counts", "warnings"),
    *("devices", "deviceSeconds", "cpuSeconds", "cost"),
}
_DEFERRABLE_BOOKKEEPING = {"progressTime", "usageTime", "pricedSeconds", "pricedCost"}
_DEFERRABLE_ATTEMPT_FIELDS = {"rows", "deviceSeconds", "cpuSeconds"}


def write_delay(before: Status, after: Status, since: float) -> float:
    """Return the seconds by which a status write can be delayed; 0 if it is urgent. `since` is the
    number of seconds since the last write. The next reconcile computes a delayed status again."""
    in_progress = (
        before.get("phase") == after.get("phase") and after.get("phase") in PROCESSING_PHASES
    )
    # while rows are processed, reasons can wait: they are about single workers and change often
    condition_fields = {"message", "reason"} if in_progress else {"message"}
    if _urgent_part(before, condition_fields) != _urgent_part(after, condition_fields):
        return 0.0
    usage_only = not in_progress and _urgent_part(before, set()) == _urgent_part(after, set())
    interval = USAGE_SECONDS if usage_only else WRITE_SECONDS
    return interval - min(max(since, 0.0), interval)


def _urgent_part(status: Status, condition_fields: set[str]) -> Status:
    """Return the part of the status to write at once, without `condition_fields` of conditions."""
    urgent = without(status, *_DEFERRABLE_FIELDS)
    urgent["operator"] = without(internal(status), *_DEFERRABLE_BOOKKEEPING)
    for name, deferrable in (
        ("attempts", _DEFERRABLE_ATTEMPT_FIELDS),
        ("conditions", condition_fields),
    ):
        urgent[name] = [without(one, *deferrable) for one in status.get(name, [])]
    return urgent
