"""Detects crashed pods: pods whose container ended, although they were not deleted or evicted.

Containers of Ray's pods never restart: KubeRay deletes the pod and creates another. So no container
reports `CrashLoopBackOff`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from batchinference.credentials import without_credentials
from batchinference.spec.causes import Cause
from batchinference.spec.times import time_of
from batchinference.text import in_one_line
from batchinference_operator.status.pod_fields import is_head
from batchinference_operator.status.ray_job import RAY_CONTAINERS, Object

MAX_HEAD_CRASHES = 5
MAX_WORKER_CRASHES = 20
"""Numbers of crashes at which an attempt ends, if its driver has not started. KubeRay replaces a
pod every ten seconds and never gives up. On a slow node, a head may time out once or twice."""
MAX_MESSAGE = 512


@dataclass(frozen=True, slots=True)
class Crash:
    """A crashed pod. `pod` is the pod's uid."""

    pod: str
    cause: Cause
    message: str
    of_head: bool


def crash_of(pod: Object) -> Crash | None:
    """Return the crash of a pod, with the exit code and the termination message of its container.

    None if the pod runs, was evicted, or was deleted before its container ended.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    ended = _ended_container(status)
    if ended is None or status.get("reason") or _was_deleted(metadata, ended[1]):
        return None
    name, state = ended
    killed = state.get("reason") == "OOMKilled"
    return Crash(
        pod=metadata.get("uid") or metadata["name"],
        cause=Cause.OUT_OF_MEMORY if killed else Cause.CRASH_LOOP,
        message=f"pod {metadata['name']}: container {name} ended with {_describe_exit(state)}",
        of_head=is_head(pod),
    )


def crash_loop(crashes: Sequence[Crash], pods: int = 0) -> Crash | None:
    """Return the last crash if the attempt must end because too many pods have crashed, else None.

    `pods` is the current number of pods, which raises the limit for workers. Workers are ignored if
    a head has crashed, because all workers end with their head.
    """
    heads = [crash for crash in crashes if crash.of_head]
    limit = MAX_HEAD_CRASHES if heads else max(MAX_WORKER_CRASHES, 3 * pods)
    counted = heads or crashes
    return counted[-1] if len(counted) >= limit else None


def describe_crashes(crashes: Sequence[Crash]) -> str:
    """Return a message with the number of crashed pods and the last crash."""
    count = len(crashes)
    pods = "1 pod has" if count == 1 else f"{count} pods have"
    return f"{pods} ended; the last: {crashes[-1].message}"


def _ended_container(status: Object) -> tuple[str, Object] | None:
    """Return the name and the state of the first failed init container or ended Ray container."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind, []):
            state = (container.get("state") or {}).get("terminated")
            failed = kind == "containerStatuses" or (state and state.get("exitCode"))
            is_ray = kind == "initContainerStatuses" or container["name"] in RAY_CONTAINERS
            if state and failed and is_ray:
                return container["name"], state
    return None


def _was_deleted(metadata: Object, state: Object) -> bool:
    """Return whether the pod was deleted before its container ended.

    `deletionTimestamp` is the end of the grace period.
    """
    deletion = time_of(metadata.get("deletionTimestamp") or "")
    if deletion is None:
        return False
    finished = time_of(state.get("finishedAt") or "")
    requested = deletion - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    return finished is None or finished >= requested


def _describe_exit(state: Object) -> str:
    reason = f" ({state['reason']})" if state.get("reason") not in (None, "", "Error") else ""
    message = in_one_line(without_credentials(state.get("message") or ""))
    if len(message) > MAX_MESSAGE:
        message = f"...{message[-MAX_MESSAGE:]}"
    return f"exit code {state.get('exitCode')}{reason}" + (f": {message}" if message else "")
