"""The fields of a BatchInference that the operator reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Self

from batchinference.rendering import NAME_LABEL, Names
from batchinference.spec import Problem, SpecError
from batchinference.spec.job import (
    API_VERSION,
    CANCELLED_AT,
    CONTROLLER_NAME,
    KIND,
    OPERATOR_FIELDS,
)
from batchinference.spec.status import Phase
from batchinference_operator.status.attempts import attempt_number
from batchinference_operator.status.conditions import Summary, is_condition_true
from batchinference_operator.status.job_status import Status, StatusUpdate, build_status
from batchinference_operator.status.ray_job_view import Object
from batchinference_operator.status.timestamps import to_rfc3339

SKIPPED_FIELDS = "skippedFields"
"""A key that the operator adds to an object of which it did not read all fields. Its value has the
reason by section, for instance {"spec": "spec: it is too large (...)"}."""


@dataclass(frozen=True)
class ResourceView:
    """A BatchInference or a BatchInferenceSchedule as stored in the API server."""

    kind: ClassVar[str]
    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    spec: dict[str, Any]
    status: Status
    created_at: str = ""
    deleted_at: str = ""
    """When its deletion started; empty if it is not being deleted."""
    skipped_reason: str = ""
    """Why fields of the spec were not read; empty if all fields were read."""

    @classmethod
    def of(cls, body: Object) -> Self:
        """Return the view of an object. Raises KeyError if required metadata is missing."""
        metadata = body["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            resource_version=metadata["resourceVersion"],
            spec=body.get("spec", {}),
            status=body.get("status", {}),
            created_at=metadata.get("creationTimestamp", ""),
            deleted_at=metadata.get("deletionTimestamp", ""),
            skipped_reason=body.get(SKIPPED_FIELDS, {}).get("spec", ""),
        )

    @property
    def deleting(self) -> bool:
        """Whether it is being deleted."""
        return bool(self.deleted_at)

    @property
    def document(self) -> dict[str, Any]:
        """The object in the form that the parser of the spec expects. Raises SpecError if fields of
        the spec were not read."""
        if self.skipped_reason:
            raise SpecError([Problem("", self.skipped_reason)])
        metadata = {"name": self.name, "namespace": self.namespace}
        document = {"apiVersion": API_VERSION, "kind": self.kind, "metadata": metadata}
        return {**document, "spec": self.spec}


@dataclass(frozen=True)
class JobView(ResourceView):
    """A BatchInference. If fields of its spec were not read, the spec has only OPERATOR_FIELDS."""

    kind: ClassVar[str] = KIND
    cancelled: bool = False
    """Whether the batch service has cancelled the job. A cancelled job stays suspended."""

    @classmethod
    def of(cls, body: Object) -> Self:
        """Return the view of a job. If fields were skipped, its spec has only OPERATOR_FIELDS."""
        job = super().of(body)
        if job.skipped_reason:
            spec = {name: job.spec[name] for name in OPERATOR_FIELDS if name in job.spec}
            job = replace(job, spec=spec)
        return replace(job, cancelled=CANCELLED_AT in body["metadata"].get("annotations", {}))

    @property
    def key(self) -> JobKey:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def finished(self) -> bool:
        """Whether the status says that the job is complete or failed."""
        ends = ("Complete", "Failed")
        return any(is_condition_true(self.status, end) for end in ends)

    @property
    def managed(self) -> bool:
        """Whether this operator runs the job, and not another controller named in `managedBy`."""
        return self.spec.get("managedBy") in (None, CONTROLLER_NAME)

    @property
    def terminal(self) -> bool:
        """Whether the job is finished, being deleted or not managed."""
        return self.deleting or self.finished or not self.managed

    def with_status(self, status: Status) -> JobView:
        """Return the job with another status."""
        return replace(self, status=status)

    def build_status(self, update: StatusUpdate, now: datetime) -> Status:
        """Return the status after an update."""
        return build_status(self.status, self.generation, update, to_rfc3339(now))

    def pending_status(self, summary: Summary, now: datetime) -> Status:
        """Return the status in the phase Pending, with the reason in `summary`."""
        return self.build_status(StatusUpdate(Phase.PENDING, summary), now)

    def names(self, attempt: int) -> Names:
        """Return the names of the objects of an attempt."""
        return Names(self.name, self.uid, attempt)

    @property
    def last_attempt_names(self) -> Names:
        """The names of the objects of the last attempt."""
        return self.names(attempt_number(self.status))

    @property
    def next_names(self) -> Names:
        """The names of the objects of the next attempt."""
        return self.names(attempt_number(self.status) + 1)

    def has_attempt(self, ray_job: str, last: int) -> bool:
        """Return whether a RayJob has the name of one of the attempts 1 to `last`. No list of names
        is made, because a user who may write the status can set any number of attempts."""
        number = ray_job.removeprefix(f"{self.name}-")
        if not number.isdecimal() or self.names(int(number)).ray_job != ray_job:
            return False
        return 1 <= int(number) <= last


JobKey = tuple[str, str]
"""Namespace and name of a BatchInference."""


def key_of(body: Object) -> JobKey:
    """Return the namespace and the name of an object."""
    return body["metadata"]["namespace"], body["metadata"]["name"]


def stub_of(key: JobKey, name: str, uid: str = "", **labels: str) -> Object:
    """Return an object of a job with only the fields that identify it."""
    namespace, job = key
    labels[NAME_LABEL] = job
    return {"metadata": {"namespace": namespace, "name": name, "uid": uid, "labels": labels}}


def parent_of(body: Object) -> JobKey:
    """Return the key of the job that the label of a RayJob or pod names."""
    metadata = body["metadata"]
    return metadata["namespace"], metadata["labels"][NAME_LABEL]
