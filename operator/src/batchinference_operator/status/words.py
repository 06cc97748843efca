"""What other objects say of why something waits, in their words."""

from __future__ import annotations

from batchinference_operator.status.observations import Object

OF_NODE = ("FailedAttachVolume", "NetworkNotReady", "FailedCreatePodSandBox")
"""Reasons of warnings about a pod that lie with its node: they pass, or another node has none."""
_KEEPS_FROM_STARTING = {
    "FailedMount",
    "FailedMapVolume",
    "FailedPrepareDynamicResources",
    "FailedCreatePodContainer",
    "Failed",
    *OF_NODE,
}
"""Reasons of warnings about a pod that has its node, but whose containers do not start."""


def warning_of(events: list[Object], *, of_pod: bool) -> str:
    """The words of the last Event, if it warns: what follows a warning tells that it is healed."""
    warns = [_warns(event, of_pod=of_pod) for event in events]
    telling = [
        (_last_seen(event), warning, _words_of(event))
        for event, warning in zip(events, warns, strict=True)
        if warning or event.get("type") == "Normal"
    ]
    _, warning, words = max(telling, default=("", False, ""))
    return words if warning else ""


def _words_of(event: Object) -> str:
    """The message of an Event; behind its reason, where that decides what is to be done."""
    reason, message = event.get("reason"), str(event.get("message", ""))
    return f"{reason}: {message}" if reason in OF_NODE else message


def _warns(event: Object, *, of_pod: bool) -> bool:
    """A pod that has its node is warned of much that does not keep it from starting."""
    if of_pod:
        return event.get("reason") in _KEEPS_FROM_STARTING
    return event.get("type") == "Warning"


def _last_seen(event: Object) -> str:
    """The second in which an Event came last, under any of the names that its makers give that."""
    series = event.get("series") or {}
    times = (
        *(series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")),
        event["metadata"]["creationTimestamp"],
    )
    return next(str(time)[: len("2026-03-01T12:00:00")] for time in times if time)


def quota_words(workload: Object) -> str:
    """Why a Workload has no quota, or no longer has."""
    said = {one["type"]: one for one in (workload.get("status") or {}).get("conditions", [])}
    quota, evicted = said.get("QuotaReserved", {}), said.get("Evicted", {})
    waiting = quota.get("message", "") if quota.get("status") == "False" else ""
    return str(waiting or (evicted.get("message", "") if evicted.get("status") == "True" else ""))
