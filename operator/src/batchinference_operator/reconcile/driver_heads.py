"""Counts the heads that the driver of an attempt has lost.

KubeRay replaces a head and starts the driver again in the same attempt. Without an end, a driver
that needs more memory than its head has would be killed again and again.
"""

from __future__ import annotations

from typing import Any

from batchinference.spec.causes import Cause
from batchinference_operator.reconcile.state import Observed
from batchinference_operator.status.attempts import last_attempt, update_last
from batchinference_operator.status.job_status import Status
from batchinference_operator.status.pods import PodView
from batchinference_operator.status.ray_job import RayJobView

MAX_LOST_HEADS = 3
MAX_LOST_BY_MEMORY = 2
"""Maximum number of heads that an attempt loses without a finished row, and by a lack of memory:
an attempt with more memory is better than another head with the same."""


def record_driver_head(status: Status, observed: Observed, ray_job: RayJobView) -> Status:
    """Return the status with the head on which the driver runs, and with how many were lost
    before. The count starts again after a finished row, unless memory ran out."""
    attempt, head = last_attempt(status), _running_head(observed)
    if attempt is None or head is None or not ray_job.driver_started:
        return status
    rows, before = attempt.get("rows", 0), attempt.get("driverHead")
    if before is None:
        return update_last(status, {"driverHead": {"pod": head.uid, "lost": 0, "rows": rows}})
    if before["pod"] == head.uid:
        return status
    cause = _cause_of_loss(before["pod"], observed)
    continues = rows > before["rows"] and cause != Cause.OUT_OF_MEMORY
    lost = 1 if continues else before["lost"] + 1
    now = {"pod": head.uid, "lost": lost, "rows": rows, "cause": cause.value}
    return update_last(status, {"driverHead": now})


def cause_of_lost_heads(status: Status, observed: Observed) -> tuple[Cause, str] | None:
    """Return the cause and message of an attempt that has lost too many heads, otherwise None."""
    head: dict[str, Any] = (last_attempt(status) or {}).get("driverHead", {})
    cause = Cause.named(head.get("cause", ""))
    limit = MAX_LOST_BY_MEMORY if cause == Cause.OUT_OF_MEMORY else MAX_LOST_HEADS
    if cause is None or head["lost"] < limit:
        return None
    reasons = [crash.message for crash in observed.crashes if crash.of_head]
    reasons += [one.message for one in observed.disruptions if one.of_head]
    why = f": {reasons[-1]}" if reasons else ""
    return cause, f"the attempt has lost {head['lost']} heads{why}"


def _running_head(observed: Observed) -> PodView | None:
    heads = [pod for pod in observed.pods_of_attempt if pod.is_head and not pod.deleting]
    running = [pod for pod in heads if pod.started is not None and pod.ended is None]
    return running[0] if len(running) == 1 else None


def _cause_of_loss(pod: str, observed: Observed) -> Cause:
    """Return why a head was lost, as far as its pod was observed."""
    crashes = {one.pod: one.cause for one in observed.crashes}
    disruptions = {one.pod: one.cause for one in observed.disruptions}
    cause = disruptions.get(pod) or crashes.get(pod)
    return Cause.HEAD_LOST if cause in (None, Cause.CRASH_LOOP) else cause
