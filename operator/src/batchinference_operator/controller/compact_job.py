"""A job stored as text: as objects, its spec and status take several times the memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields

from batchinference.spec.job import LIFE
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.attempt_objects import MAX_SPEC_BYTES
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.attempts import attempt_number
from batchinference_operator.status.conditions import is_condition_true


@dataclass(frozen=True, slots=True)
class CompactJob:
    uid: str
    created_at: str
    resource_version: str
    phase: str
    attempt: int
    """The number of the last attempt; 0 if there was none or the job is finished."""
    finished: bool
    fields: str

    @classmethod
    def of(cls, job: JobView) -> CompactJob:
        job = _only_the_end(job) if _at_rest(job) else job
        text = _text(job)
        if len(text) > MAX_SPEC_BYTES:
            job = _bounded(job)
            text = _text(job)
        attempt = attempt_number(job.status)
        known = job.uid, job.created_at, job.resource_version, _phase(job), attempt
        return cls(*known, job.finished, text)

    def job(self) -> JobView:
        return JobView(**json.loads(self.fields))


def _text(job: JobView) -> str:
    fields = {field.name: getattr(job, field.name) for field in dataclass_fields(job)}
    return json.dumps(fields, separators=(",", ":"))


def _bounded(job: JobView) -> JobView:
    """Return the job with only the LIFE fields of its spec if the spec is too large.

    The CustomResourceDefinition limits their size, and a rejected job still needs them. A few
    hundred complete specs of this size would take all memory.
    """
    spec = json.dumps(job.spec, separators=(",", ":"), ensure_ascii=False)
    if (size := len(spec.encode(errors="replace"))) <= MAX_SPEC_BYTES:
        return job
    compact = {name: job.spec[name] for name in LIFE if name in job.spec}
    return replace(job, spec=compact, oversized=size)


def _phase(job: JobView) -> str:
    if job.finished:
        return Phase.SUCCEEDED if is_condition_true(job.status, "Complete") else Phase.FAILED
    return str(job.status.get("phase", Phase.PENDING))


def _at_rest(job: JobView) -> bool:
    """Return whether the job is finished and its status is up to date with its spec."""
    return job.finished and job.status.get("observedGeneration") == job.generation


def _only_the_end(job: JobView) -> JobView:
    """Return the job with only what is read of a finished job: there may be thousands."""
    fields = ("type", "status", "reason", "lastTransitionTime")
    ends = [{name: c[name] for name in fields if name in c} for c in job.status["conditions"]]
    spec = {name: value for name, value in job.spec.items() if name in ("ttl", "managedBy")}
    compact = {"conditions": ends, "observedGeneration": job.generation}
    return replace(job, spec=spec, status=compact)
