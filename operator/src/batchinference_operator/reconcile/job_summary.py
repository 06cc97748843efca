"""The fields of a job that the metrics need."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from batchinference.spec.phases import PROCESSING_PHASES, Phase
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.attempts import last_attempt
from batchinference_operator.status.conditions import find_condition, is_condition_true

_NOT_WAITING = {*PROCESSING_PHASES, Phase.SUSPENDED}


@dataclass(frozen=True, slots=True)
class JobSummary:
    """The namespace and the phase of a job, and why it waits."""

    namespace: str
    phase: str
    gpus: int = 0
    """GPUs that its pods have now."""
    waiting_since: str = ""
    """Start of the wait of an unfinished job; empty if it processes rows or is suspended."""
    reason: str = ""
    """The reason why it waits, as in its condition Ready; empty if it does not wait."""

    @classmethod
    def of(cls, job: JobView) -> JobSummary:
        namespace = sys.intern(job.namespace)
        if job.finished:
            complete = is_condition_true(job.status, "Complete")
            return cls(namespace, Phase.SUCCEEDED if complete else Phase.FAILED)
        phase = str(job.status.get("phase", Phase.PENDING))
        gpus = int(job.status.get("devices", 0))
        if phase in _NOT_WAITING:
            return cls(namespace, phase, gpus)
        ready = find_condition(job.status, "Ready") or {}
        reason = sys.intern(str(ready.get("reason", phase)))
        return cls(namespace, phase, gpus, _waiting_since(job), reason)


def _waiting_since(job: JobView) -> str:
    """Return when the job was created, was resumed, or ended its last attempt: the latest time.

    All timestamps have the same format, so they can be compared as strings.
    """
    resumed = (find_condition(job.status, "Suspended") or {}).get("lastTransitionTime", "")
    ended = (last_attempt(job.status) or {}).get("completionTime", "")
    return max(job.created_at, str(resumed), str(ended))
