"""Ends an attempt that cannot recover because its pods were lost or have crashed."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from batchinference.spec.causes import Cause
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.status.attempts import last_attempt
from batchinference_operator.status.failure_cause import Failure
from batchinference_operator.status.job_status import Status, internal, with_internal
from batchinference_operator.status.pod_problems import Crash, Disruption
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import RayJobView

MAX_LOST_HEADS = 3
MAX_LOST_BY_MEMORY = 2
"""Numbers of lost heads at which an attempt ends. The second number applies if the last lost head
ran out of memory, because the next attempt may get more memory."""


def record_driver_head(status: Status, observed: Observed, ray_job: RayJobView) -> Status:
    """Return the status with the head on which the driver runs, and the number of heads that the
    attempt has lost. The number restarts at 1 after a finished row, except for OutOfMemory."""
    heads = [pod for pod in observed.pods_of_attempt if pod.is_head and not pod.deleting]
    running = [pod for pod in heads if pod.scheduled_at is not None and pod.ended_at is None]
    if len(running) != 1 or not ray_job.driver_started:
        return status
    head = running[0]
    rows, before = last_attempt(status).get("rows", 0), internal(status).get("driverHead")
    if before is None:
        return with_internal(status, driverHead={"pod": head.uid, "lost": 0, "rows": rows})
    if before["pod"] == head.uid:
        return status
    cause = _cause_of_loss(before["pod"], observed)
    restarts = rows > before["rows"] and cause != Cause.OUT_OF_MEMORY
    lost = 1 if restarts else before["lost"] + 1
    now = {"pod": head.uid, "lost": lost, "rows": rows, "cause": cause.value}
    return with_internal(status, driverHead=now)


def cause_of_lost_heads(status: Status, observed: Observed) -> Failure | None:
    """Return the cause and the message if an attempt has lost too many heads, otherwise None."""
    head: dict[str, Any] = internal(status).get("driverHead", {})
    cause = Cause.from_name(head.get("cause", ""))
    limit = MAX_LOST_BY_MEMORY if cause == Cause.OUT_OF_MEMORY else MAX_LOST_HEADS
    if cause is None or head["lost"] < limit:
        return None
    reasons = [crash.message for crash in observed.crashes if crash.of_head]
    if (lost := observed.disruption) is not None and lost.of_head:
        reasons.append(lost.message)
    why = f": {reasons[-1]}" if reasons else ""
    return cause, f"the attempt has lost {head['lost']} heads{why}"


def _cause_of_loss(pod: str, observed: Observed) -> Cause:
    """Return why a head was lost; HeadLost if its pod did not show a more specific cause."""
    crashes = {one.pod: one.cause for one in observed.crashes}
    lost = observed.disruption
    cause = lost.cause if lost is not None and lost.pod == pod else crashes.get(pod)
    return Cause.HEAD_LOST if cause in (None, Cause.CRASH_LOOP) else cause


LOST_PODS_SECONDS = 60.0
"""Seconds from the disruption of the head, or of all workers of a group, to the attempt's end."""


def unrecoverable_failure(observed: Observed, ray_job: RayJobView, now: datetime) -> Failure | None:
    """Return the cause and the message if the attempt cannot recover, otherwise None."""
    if ray_job.ended or ray_job.suspended:
        return None
    if (failure := cause_of_lost_heads(observed.job.status, observed)) is not None:
        return failure
    then = now.timestamp() - LOST_PODS_SECONDS
    if (lost := _lost_head(observed, then) or _lost_workers(observed, then)) is not None:
        return lost.cause, lost.message
    head_lost = observed.disruption is not None and observed.disruption.of_head
    if ray_job.driver_started or head_lost:
        return None
    crash = crash_loop(observed.crashes, len(observed.pods_of_attempt))
    return None if crash is None else (crash.cause, describe_crashes(observed.crashes))


def _lost_head(observed: Observed, then: float) -> Disruption | None:
    """Return the disruption of a head before `then`, if the driver does not answer and KubeRay has
    not replaced the head. The pod of a head whose node is down cannot end, and KubeRay waits
    forever for its end."""
    if observed.answer is None or observed.answer.reached:
        return None
    lost = observed.disruption
    if lost is None or not lost.of_head or lost.replaced or lost.at is None:
        return None
    return lost if lost.at < then else None


def _lost_workers(observed: Observed, then: float) -> Disruption | None:
    """Return the disruption of a worker if all workers of its group were lost before `then`.

    KubeRay does not replace pods that are being deleted but cannot end. Each stage runs in one
    group only, so a group without workers blocks the job.
    """
    groups: defaultdict[str, list[Disruption | None]] = defaultdict(list)
    for pod in observed.pods_of_attempt:
        if not pod.is_head and pod.ended_at is None:
            groups[pod.group].append(_node_loss(pod, then))
    return next((disruptions[0] for disruptions in groups.values() if all(disruptions)), None)


def _node_loss(pod: PodView, then: float) -> Disruption | None:
    """Return the disruption of a pod that was deleted with its node before `then`, or None."""
    lost = pod.disruption
    if lost is None or not pod.deleting or lost.cause not in (Cause.NODE_LOST, Cause.PREEMPTED):
        return None
    return lost if lost.at is not None and lost.at < then else None


MAX_HEAD_CRASHES = 5
MAX_WORKER_CRASHES = 20
"""Numbers of crashes at which an attempt ends before its driver has started. KubeRay replaces a pod
every ten seconds and never gives up. On a slow node, a head may time out once or twice."""


def crash_loop(crashes: Sequence[Crash], pods: int = 0) -> Crash | None:
    """Return the last crash if the attempt must end because too many pods have crashed, else None.

    `pods` is the current number of pods, which raises the limit for workers. Workers are ignored if
    a head has crashed, because all workers end with their head. Rejected pods count separately.
    """
    for rejected in (False, True):
        ended = [crash for crash in crashes if crash.rejected == rejected]
        heads = [crash for crash in ended if crash.of_head]
        limit = MAX_HEAD_CRASHES if heads else max(MAX_WORKER_CRASHES, 3 * pods)
        if len(counted := heads or ended) >= limit:
            return counted[-1]
    return None


def describe_crashes(crashes: Sequence[Crash]) -> str:
    """Return a message with the number of crashed pods and the last crash."""
    count = len(crashes)
    pods = "1 pod has" if count == 1 else f"{count} pods have"
    return f"{pods} ended; the last: {crashes[-1].message}"


def current_crashes(observed: Observed) -> Sequence[Crash]:
    """Return the crashes, without rejections by nodes if the last crash is a harmless rejection.
    Harmless means: no later pod of its group waits, or one has started."""
    crashes = observed.crashes
    if not (crashes and crashes[-1].rejected):
        return crashes
    last = crashes[-1]
    group = [pod for pod in observed.pods_of_attempt if pod.is_head == last.of_head]
    group = [pod for pod in group if pod.group == last.group]
    waits = any(pod.created_at >= last.created_at and not pod.started for pod in group)
    replaced = any(pod.created_at > last.created_at and pod.started for pod in group)
    return [one for one in crashes if not one.rejected] if replaced or not waits else crashes
