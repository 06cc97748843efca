"""The fields of a BatchInferenceSchedule and its runs that `decide` reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from batchinference.spec import API_VERSION, Problem, SpecError
from batchinference.spec.job import SCHEDULE_KIND
from batchinference.spec.schedule import BatchInferenceSchedule, parse_schedule
from batchinference_operator.reconcile.job_view import LEFT_OUT, JobView
from batchinference_operator.status.conditions import is_condition_true
from batchinference_operator.status.job_status import Status
from batchinference_operator.status.ray_job import Object, owner_uid


@dataclass(frozen=True)
class ScheduleView:
    """A BatchInferenceSchedule as stored in the API server."""

    kind: ClassVar[str] = SCHEDULE_KIND
    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created_at: str
    spec: dict[str, Any]
    status: Status
    deleting: bool
    unread: str
    """Why fields of the spec were skipped; else empty."""

    @classmethod
    def of(cls, body: Object) -> Self:
        metadata = body["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            resource_version=metadata["resourceVersion"],
            created_at=metadata["creationTimestamp"],
            spec=body.get("spec", {}),
            status=body.get("status", {}),
            deleting="deletionTimestamp" in metadata,
            unread=body.get(LEFT_OUT, {}).get("spec", ""),
        )

    def owns(self, body: Object) -> bool:
        """Return whether the schedule created a BatchInference."""
        return owner_uid(body, SCHEDULE_KIND) == self.uid

    def parse(self) -> BatchInferenceSchedule:
        """Return the parsed schedule. Raises SpecError."""
        if self.unread:
            raise SpecError([Problem("", self.unread)])
        metadata = {"name": self.name, "namespace": self.namespace}
        document = {"apiVersion": API_VERSION, "kind": self.kind, "metadata": metadata}
        return parse_schedule({**document, "spec": self.spec})


@dataclass(frozen=True)
class Run:
    """A BatchInference that the schedule created."""

    name: str
    uid: str
    complete: bool
    failed: bool
    ended_at: str

    @classmethod
    def of(cls, body: Object) -> Self:
        job = JobView.of(body)
        return cls(
            name=job.name,
            uid=job.uid,
            complete=is_condition_true(job.status, "Complete"),
            failed=is_condition_true(job.status, "Failed"),
            ended_at=job.status.get("completionTime", ""),
        )

    @property
    def active(self) -> bool:
        """Whether the run is not finished."""
        return not (self.complete or self.failed)
