"""The life of a job: its phases, and what leads from one to the next."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """One word for people; programs read the conditions."""

    PENDING = "Pending"
    PLANNING = "Planning"
    STARTING = "Starting"
    RUNNING = "Running"
    FINALIZING = "Finalizing"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RETRYING = "Retrying"

    @property
    def ended(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED)


AT_WORK = (Phase.RUNNING, Phase.FINALIZING)
"""Those in which the driver has begun with the rows."""
MEANINGS = {
    Phase.PENDING: "it waits: for its turn, for a name, for a node with room",
    Phase.PLANNING: "its objects are being made, the RayJob last",
    Phase.STARTING: "the RayJob is there; cluster and driver are getting ready",
    Phase.RUNNING: "rows are being processed",
    Phase.FINALIZING: "all rows are written; the output is being checked",
    Phase.SUCCEEDED: "the output is complete",
    Phase.FAILED: "it has failed and is not retried",
    Phase.SUSPENDING: "its RayJob is being removed, with all that it holds",
    Phase.SUSPENDED: "it holds nothing and waits for `suspend` to become false",
    Phase.RETRYING: "an attempt has failed; the next one follows",
}

_SUSPEND = {Phase.SUSPENDING: "suspend is set"}
_END = {
    Phase.FAILED: "a cause that is not retried, or no attempt is left",
    Phase.RETRYING: "a cause that is retried",
}
_WORK = {
    Phase.FINALIZING: "all rows are written",
    Phase.SUCCEEDED: "the driver's report says so",
    **_END,
    **_SUSPEND,
}
_BEGIN = {
    Phase.PLANNING: "it is its turn",
    Phase.STARTING: "its RayJob was made",
    Phase.PENDING: "it has to wait",
    Phase.FAILED: "the job cannot be rendered, or its time is over",
}
TRANSITIONS: dict[Phase | None, dict[Phase, str]] = {
    None: {
        **_BEGIN,
        Phase.SUSPENDED: "it was created suspended",
        Phase.SUSPENDING: "it was suspended before the status said anything of its RayJob",
    },
    Phase.PENDING: {
        Phase.PLANNING: "it is its turn",
        Phase.STARTING: "the pods have found room",
        Phase.RUNNING: "the driver has begun",
        **_WORK,
        Phase.SUSPENDED: "suspend is set and nothing was made",
    },
    Phase.PLANNING: {
        Phase.PENDING: "a pod, or the API server, says why not",
        Phase.STARTING: "the RayJob is there",
        Phase.RUNNING: "the driver has begun",
        **_WORK,
    },
    Phase.STARTING: {
        Phase.PENDING: "a pod says why it cannot start",
        Phase.RUNNING: "the driver has begun",
        **_WORK,
    },
    Phase.RUNNING: {
        Phase.PENDING: "no row is finished and a pod cannot start",
        Phase.STARTING: "KubeRay has given the job to a new head",
        **_WORK,
    },
    Phase.FINALIZING: {
        Phase.STARTING: "KubeRay has given the job to a new head",
        Phase.RUNNING: "KubeRay has given the job to a new head",
        Phase.PENDING: "Kueue has taken its place back, or a new head cannot start",
        Phase.SUCCEEDED: "the driver's report says so",
        **_END,
        **_SUSPEND,
    },
    Phase.RETRYING: {
        **_BEGIN,
        **_SUSPEND,
        Phase.SUSPENDED: "suspend is set and nothing is left of the attempt",
    },
    Phase.SUSPENDING: {**_BEGIN, Phase.SUSPENDED: "nothing is left of the attempt"},
    Phase.SUSPENDED: {
        **_BEGIN,
        Phase.SUSPENDING: "a RayJob or a pod of it has come to light",
    },
    Phase.SUCCEEDED: {},
    Phase.FAILED: {Phase.PENDING: "the spec was invalid and has changed; nothing was created"},
}
"""From each phase (None: the job has just been created) to each that may follow, and why."""


def diagram() -> str:
    """The transitions as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for before, following in TRANSITIONS.items():
        lines += [f"  {before or '[*]'} --> {after}" for after in following]
    return "\n".join(lines)
