"""The interface through which the operator uses the API server, and its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from batchinference.rendering import Backstop
from batchinference.spec.job import KIND
from batchinference_operator.status.job_status import Status
from batchinference_operator.status.ray_job import Object, RayJobView

POD = "Pod"
RAY_CLUSTER = "RayCluster"
PAGE = 10
"""Objects per page of a list. The API server limits a page by the number of objects, not by bytes:
one object may have 1.5 MB."""


class Conflict(Exception):
    """The object has changed in the meantime: reconcile again."""


class Refused(Exception):
    """The API server rejected the request. The text of the exception is the server's message."""


class Forbidden(Refused):
    """The operator lacks the permission for a request."""


class Expired(Refused):
    """A watch or a list cannot continue and must start over."""


class Invalid(Refused):
    """The API server does not accept a field or a value of an object."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field
        """The field of the job's spec that the object was rendered from, if it is known."""


class Unreachable(Refused):
    """The API server gave no answer, or a transient error.

    It is down or overloaded, or something that it depends on, such as a webhook, does not answer.
    """


class KubeApi(Protocol):
    """The operations of the API server that the operator uses. Tests use another implementation.

    Each call raises Unreachable if the server gives no answer or a transient error.
    """

    async def create(self, body: Object) -> Object | None:
        """Create an object and return it as stored. Raises Refused.

        Returns None if an object of that name already exists, which also counts as success.
        """

    async def dry_run(self, field: str, body: Object) -> None:
        """Let the API server validate an object without creating it.

        `field` is the field of the job's spec that is validated. Raises Invalid and Refused.
        """

    def list_all(self, kind: str, namespace: str) -> AsyncIterator[Object]:
        """Yield every object of a kind in a namespace, or in all namespaces if it is empty."""

    async def get_ray_job(self, namespace: str, name: str) -> Object | None:
        """Return the current state of a RayJob (a live read); None if it is gone."""

    async def last_warning(self, namespace: str, kind: str, name: str) -> str:
        """Return the message of an Event about a pod or a RayCluster; empty if there is none.

        It says why the pod's containers do not start, or why the RayCluster gets no pods.
        """

    async def queued_reason(self, namespace: str, ray_job: RayJobView) -> str:
        """Return Kueue's message on why it holds a RayJob back; empty if there is none."""

    async def release_cluster(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete the cluster of a finished RayJob, and set the RayJob's TTL to 0."""

    async def set_backstop(self, namespace: str, ray_job: RayJobView, backstop: Backstop) -> None:
        """Set the backstop deadlines at which KubeRay ends a RayJob.

        A RayJob that is gone is not an error. Raises Conflict and Refused.
        """

    async def delete_ray_job(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete a RayJob and its cluster.

        Missing objects are not an error. Another object with the same name is not deleted.
        """

    async def delete_job(self, namespace: str, name: str, uid: str, resource_version: str) -> None:
        """Delete a BatchInference, unless it has changed since this version. Raises Refused."""

    async def post_event(self, body: Object) -> bool:
        """Post an Event, or increase the count of the existing Event of that name.

        Returns whether the Event existed. Raises Refused.
        """

    async def get_schedule(self, namespace: str, name: str) -> Object | None:
        """Return the current state of a BatchInferenceSchedule; None if it is gone."""

    def list_runs(self, namespace: str, schedule: str) -> AsyncIterator[Object]:
        """Yield the first BatchInferences by name with the label of a schedule (a live read)."""

    async def delete_run(self, namespace: str, name: str, uid: str) -> None:
        """Delete a BatchInference, even if it has changed. A missing one is not an error."""

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Status, *, kind: str = KIND
    ) -> Object | None:
        """Merge a patch into the status of an object, and return the object as stored.

        Returns None if it is gone. Raises Conflict, and Invalid if the CustomResourceDefinition
        does not know a value.
        """
