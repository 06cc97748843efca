"""Reads Events about an object, to find the last one if it explains why the object waits."""

from typing import NamedTuple, Self

from batchinference_operator.status.conditions import truncate_message
from batchinference_operator.status.ray_job_view import Object

NODE_WARNINGS = ("FailedAttachVolume", "NetworkNotReady", "FailedCreatePodSandBox")
"""Reasons of warnings about a pod's node. Such problems resolve over time or on another node."""
_START_FAILURES = {
    "FailedMount",
    "FailedMapVolume",
    "FailedPrepareDynamicResources",
    "FailedCreatePodContainer",
    "Failed",
    *NODE_WARNINGS,
}
"""Reasons of warnings about a pod that has a node but whose containers do not start."""
_IMAGE_FAILURES = ("Failed to pull image", "Error: ErrImagePull", "Error: ImagePullBackOff")


class EventSummary(NamedTuple):
    """When an Event was last seen, whether it is a relevant warning, and its message. The order of
    the fields matters: the maximum is the last Event."""

    last_seen: str = ""
    warning: bool = False
    message: str = ""

    @classmethod
    def of(cls, event: Object, *, of_pod: bool) -> Self | None:
        """Return the summary of an Event; None for a warning that does not explain why its object
        waits. A normal Event after a warning means that the problem is resolved.

        Messages are untrusted, so they are truncated. A reason in NODE_WARNINGS becomes a prefix,
        from which `derive_phase` derives the failure cause.
        """
        warning = _is_warning(event, of_pod=of_pod)
        if not warning and event.get("type") != "Normal":
            return None
        reason, message = event.get("reason"), str(event.get("message", ""))
        prefix = f"{reason}: " if reason in NODE_WARNINGS else ""
        return cls(_last_seen(event), warning, truncate_message(f"{prefix}{message}"))


def _is_warning(event: Object, *, of_pod: bool) -> bool:
    """Return whether an Event is a warning that explains why its object waits.

    Many warnings about a scheduled pod do not prevent its start. Warnings about image pulls are
    ignored, because the status of the pod has the current problem, and an Event may be older.
    """
    if of_pod:
        pulls = str(event.get("message", "")).startswith(_IMAGE_FAILURES)
        return event.get("reason") in _START_FAILURES and not pulls
    return event.get("type") == "Warning"


def _last_seen(event: Object) -> str:
    """Return the time of an Event's last occurrence without fractions of a second. Components store
    this time in different fields."""
    series = event.get("series") or {}
    times = [series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")]
    times.append(event["metadata"]["creationTimestamp"])
    return next(str(time)[: len("2026-03-01T12:00:00")] for time in times if time)
