"""The fields of a BatchInference that reconcile reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Self

from batchinference.spec.job import CONTROLLER_NAME, KIND, OPERATOR_FIELDS
from batchinference_operator.status.conditions import is_condition_true
from batchinference_operator.status.job_status import Status, StatusUpdate, build_status
from batchinference_operator.status.ray_job import Object
from batchinference_operator.status.timestamps import to_rfc3339

LEFT_OUT = "leftOut"
"""Key in an object that maps each section with skipped fields to the reason."""


@dataclass(frozen=True)
class JobView:
    """A BatchInference as stored in the API server."""

    kind: ClassVar[str] = KIND
    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    spec: dict[str, Any]
    status: Status
    created_at: str = ""
    deleting: bool = False
    unread: str = ""
    """Why fields of the spec were skipped; else empty. Then `spec` has only OPERATOR_FIELDS."""

    @classmethod
    def of(cls, body: Object) -> Self:
        metadata, spec = body["metadata"], body.get("spec", {})
        if unread := body.get(LEFT_OUT, {}).get("spec", ""):
            spec = {name: spec[name] for name in OPERATOR_FIELDS if name in spec}
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            resource_version=metadata["resourceVersion"],
            spec=spec,
            status=body.get("status", {}),
            created_at=metadata.get("creationTimestamp", ""),
            deleting="deletionTimestamp" in metadata,
            unread=unread,
        )

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def finished(self) -> bool:
        """Whether the status says that the job is complete or failed."""
        ends = ("Complete", "Failed")
        return any(is_condition_true(self.status, end) for end in ends)

    @property
    def managed(self) -> bool:
        """Whether this operator runs the job, and not the controller in `managedBy`."""
        return self.spec.get("managedBy") in (None, CONTROLLER_NAME)

    @property
    def terminal(self) -> bool:
        """Whether no further attempt starts: the job is finished, being deleted or not managed."""
        return self.deleting or self.finished or not self.managed

    def with_status(self, status: Status) -> JobView:
        """Return the job with another status."""
        return replace(self, status=status)

    def build_status(self, update: StatusUpdate, now: datetime) -> Status:
        """Return the status after an update."""
        return build_status(self.status, self.generation, update, to_rfc3339(now))

    @property
    def document(self) -> dict[str, Any]:
        """The resource in the form that the parser of the spec expects."""
        return {
            "apiVersion": "batchinference.dev/v1beta1",
            "kind": "BatchInference",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self.spec,
        }
