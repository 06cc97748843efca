"""Stores a job as JSON text. As Python objects, it would take several times the memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields

from batchinference_operator.reconcile.job_summary import JobSummary
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.attempts import attempt_number


@dataclass(frozen=True, slots=True)
class CompactJob:
    uid: str
    created_at: str
    resource_version: str
    summary: JobSummary
    attempt: int
    """The number of the last attempt; 0 if there is none, or if the job is finished and its
    status is up to date with its spec."""
    finished: bool
    fields: str

    @classmethod
    def of(cls, job: JobView) -> CompactJob:
        job = _without_unused_fields(job) if _is_settled(job) else job
        attempt = attempt_number(job.status)
        known = job.uid, job.created_at, job.resource_version, JobSummary.of(job), attempt
        fields = {field.name: getattr(job, field.name) for field in dataclass_fields(job)}
        return cls(*known, job.finished, json.dumps(fields, separators=(",", ":")))

    def job(self) -> JobView:
        return JobView(**json.loads(self.fields))


def _is_settled(job: JobView) -> bool:
    """Return whether the job is finished and its status is up to date with its spec."""
    return job.finished and job.status.get("observedGeneration") == job.generation


def _without_unused_fields(job: JobView) -> JobView:
    """Return a finished job with only the fields that are still read."""
    fields = ("type", "status", "reason", "lastTransitionTime")
    conditions = [{name: c[name] for name in fields if name in c} for c in job.status["conditions"]]
    spec = {name: value for name, value in job.spec.items() if name in ("ttl", "managedBy")}
    compact = {"conditions": conditions, "observedGeneration": job.generation}
    return replace(job, spec=spec, status=compact)
