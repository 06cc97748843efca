"""Builds conditions by the rules of kubectl wait, Flux, Argo CD and Helm 4.

Ready, Complete, Failed and Suspended are always present. Reconciling and Stalled are present only
while they are true. As in Flux, a suspended job is Ready: tools that wait for several objects must
not wait for a suspended job.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batchinference.text import in_one_line

MAX_MESSAGE = 4096
"""Maximum number of characters of a message. The CRD rejects longer messages, but messages of
KubeRay and drivers may have any length."""
NOTIFIED = "Notified"
"""The condition that is added when the notifications about the end of a job were sent or failed."""
_FALSE_REASONS = {
    "Complete": ("NotComplete", "the output is not complete"),
    "Failed": ("NotFailed", "the job has not failed"),
    "Suspended": ("NotSuspended", "the job is not suspended"),
}
"""Reason and message of a false condition. A false Ready has the reason and message of the job."""

_ONLY_TRUE = ("Reconciling", "Stalled")


class Waiting(StrEnum):
    """Reasons for which a job or a schedule waits, except phases and causes of failure.
    `tools/generators/troubleshooting.py` has the texts of the documentation about each reason."""

    ADMISSION_PENDING = "AdmissionPending"
    QUEUED = "Queued"
    NAME_TAKEN = "NameTaken"
    API_SERVER_UNAVAILABLE = "ApiServerUnavailable"
    KUBERAY_NOT_RESPONDING = "KubeRayNotResponding"
    DRIVER_SILENT = "DriverSilent"
    DRIVER_UNAUTHORIZED = "DriverUnauthorized"
    RUN_ACTIVE = "RunActive"
    CLOCK_BEHIND = "ClockBehind"


@dataclass(frozen=True)
class Summary:
    """Whether a job or schedule is complete, failed, suspended, or none of these; and why."""

    reason: str
    message: str
    complete: bool = False
    failed: bool = False
    suspended: bool = False


def build_conditions(
    summary: Summary, previous: list[dict[str, Any]], generation: int, now: str
) -> list[dict[str, Any]]:
    """Return the conditions of a job, except Notified. The `lastTransitionTime` of a condition
    changes only with its status."""
    is_true_by_type = {
        "Ready": summary.complete or summary.suspended,
        "Complete": summary.complete,
        "Failed": summary.failed,
        "Suspended": summary.suspended,
        "Reconciling": not (summary.complete or summary.failed or summary.suspended),
        "Stalled": summary.failed,
    }
    return conditions_of(is_true_by_type, summary, previous, generation, now)


def conditions_of(
    is_true_by_type: dict[str, bool],
    summary: Summary,
    previous: list[dict[str, Any]],
    generation: int,
    now: str,
) -> list[dict[str, Any]]:
    """Return a condition for each type in `is_true_by_type`, except false types of _ONLY_TRUE."""
    before = {condition["type"]: condition for condition in previous}
    why = summary.reason, summary.message
    conditions = []
    for kind, is_true in is_true_by_type.items():
        if kind in _ONLY_TRUE and not is_true:
            continue
        status, former = "True" if is_true else "False", before.get(kind, {})
        reason, message = why if is_true else _FALSE_REASONS.get(kind, why)
        changed = former.get("status") != status
        conditions.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": truncate_message(message),
                "lastTransitionTime": now if changed else former["lastTransitionTime"],
                "observedGeneration": generation,
            }
        )
    return conditions


def truncate_message(message: str) -> str:
    """Return the message in one line, with at most MAX_MESSAGE characters. A line break would end
    the column in kubectl, and the CRD limits the length."""
    message = in_one_line(message)
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."


def find_condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the condition of this type; empty if the status does not have it."""
    return next((one for one in status.get("conditions", []) if one["type"] == kind), {})


def is_condition_true(status: dict[str, Any], kind: str) -> bool:
    """Return whether a status has this condition with status True."""
    return find_condition(status, kind).get("status") == "True"
