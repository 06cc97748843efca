"""The fields of a BatchInference that the operator reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Self, TypeVar

from pydantic import ValidationError

from batchinference.rendering import NAME_LABEL, Names
from batchinference.spec import Problem, SpecError
from batchinference.spec.base import SpecModel
from batchinference.spec.cluster import Limits, lower_limits
from batchinference.spec.durations import seconds_of
from batchinference.spec.job import (
    API_VERSION,
    CANCELLED_AT,
    CONTROLLER_NAME,
    KIND,
    OPERATOR_FIELDS,
)
from batchinference.spec.lifecycle import Deadlines, Retry, Ttl
from batchinference.spec.platform_defaults import Lifecycle, PlatformDefaults
from batchinference_operator.status.attempts import attempt_number
from batchinference_operator.status.conditions import is_condition_true
from batchinference_operator.status.job_status import Status, StatusUpdate, build_status
from batchinference_operator.status.ray_job import Object
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
        if job.status.get("attempt"):
            job = replace(job, spec=_with_fitting_backoff(job.spec))
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


def _with_fitting_backoff(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a job that has started, with `retry.backoff.initial` at most `max`.
    Earlier versions accepted a higher one, and used `max`: the next attempt must not fail."""
    retry = spec.get("retry")
    if not isinstance(retry, dict) or not isinstance(retry.get("backoff"), dict):
        return spec
    initial, longest = (retry["backoff"].get(name) for name in ("initial", "max"))
    if not isinstance(initial, str) or not isinstance(longest, str):
        return spec
    if seconds_of(initial) <= seconds_of(longest):
        return spec
    return {**spec, "retry": {**retry, "backoff": {**retry["backoff"], "initial": longest}}}


Model = TypeVar("Model", bound=SpecModel)


@dataclass(frozen=True)
class MutableSpec:
    """Fields of the spec whose changes also take effect after the start. The defaults and limits of
    the platform are applied."""

    suspend: bool
    retry: Retry
    deadlines: Deadlines
    ttl: Ttl
    limits: Limits

    @classmethod
    def of(cls, spec: dict[str, Any], platform: PlatformDefaults) -> MutableSpec:
        """Return these fields of a spec. An invalid or missing field has the platform's value."""
        own = Lifecycle(
            _parse_section(Retry, spec.get("retry")),
            _parse_section(Deadlines, spec.get("deadlines")),
            _parse_section(Ttl, spec.get("ttl")),
        )
        limits = _parse_section(Limits, (spec.get("cluster") or {}).get("limits"))
        return cls(
            spec.get("suspend") is True,
            *platform.complete(own),
            lower_limits(limits, platform.limits),
        )


def _parse_section(model: type[Model], given: Any) -> Model:
    """Return a section of the spec without its invalid fields. The API server should have rejected
    these fields. They must not end a running job."""
    if not isinstance(given, dict):
        return model()
    try:
        return model.model_validate(given)
    except ValidationError as error:
        invalid = {problem["loc"][0] for problem in error.errors()}
        return model.model_validate({k: v for k, v in given.items() if k not in invalid})


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
