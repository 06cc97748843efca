"""The interface through which the operator uses the API server, and its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from batchinference.rendering import Backstop
from batchinference.spec.job import KIND
from batchinference_operator.status.job_status import Status
from batchinference_operator.status.ray_job import Object, RayJobView

POD = "Pod"
PAGE = 10
"""Objects per page of a list. The API server limits the objects of a page but not its size, and an
object may have 1.5 MB. It would ignore the limit for resourceVersion=0. Since Kubernetes 1.34, it
reads pages from its cache."""
MAX_RUNS = 1000
"""Maximum number of objects with the label of a schedule in a list. The history limits allow 200
finished runs. A tenant with more runs must not delay other schedules."""


class Conflict(Exception):
    """The object has changed since it was read. The job must be reconciled again."""


class Refused(Exception):
    """The API server rejected the request. The exception has the server's message."""


class Forbidden(Refused):
    """The operator has no permission for the request."""


class Expired(Refused):
    """A watch or a list cannot continue and must start over."""


class Invalid(Refused):
    """The API server rejected a field or a value of an object."""


class Unreachable(Refused):
    """The API server did not respond, or returned a transient error.

    It is down or overloaded, or a component that it calls, such as a webhook, does not respond.
    """


class KubeApi(Protocol):
    """The requests of the operator to the API server. Tests use another implementation.

    Each method raises Unreachable if the server does not respond or returns a transient error.
    """

    async def create(self, body: Object) -> Object | None:
        """Create an object and return it as stored. Raises Refused.

        Returns None if an object of that name already exists, which is not an error.
        """

    def list_all(self, kind: str, namespace: str) -> AsyncIterator[Object]:
        """Yield every object of a kind in a namespace, or in all namespaces if it is empty."""

    async def get_ray_job(self, namespace: str, name: str) -> Object | None:
        """Return the current state of a RayJob (a live read); None if it is gone."""

    async def get_object(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return the current state of an object (a live read); None if it is gone."""

    async def last_warning(self, namespace: str, kind: str, name: str) -> str:
        """Return why a pod's containers do not start, or why a RayCluster has no pods.

        This is the message of the last Event about it; empty if the Event is not a warning.
        """

    async def queued_reason(self, namespace: str, ray_job: RayJobView) -> str:
        """Return Kueue's message on why a RayJob is queued; empty if there is none."""

    async def release_cluster(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete the cluster of a finished RayJob, and set the RayJob's TTL to 0."""

    async def remove_workers(self, namespace: str, ray_job: RayJobView) -> None:
        """Let KubeRay delete the workers of a RayJob's cluster, and keep the head.

        A missing cluster is not an error. Raises Conflict and Refused.
        """

    async def set_backstop(self, namespace: str, ray_job: RayJobView, backstop: Backstop) -> None:
        """Set the backstop deadlines after which KubeRay ends a RayJob.

        A missing RayJob is not an error. Raises Conflict and Refused.
        """

    async def release_pods(self, namespace: str, ray_job: RayJobView, now: str) -> None:
        """Change an annotation of a RayJob, so that Kueue looks at its gated pods.

        A missing RayJob is not an error. Raises Conflict and Refused.
        """

    async def delete_ray_job(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete a RayJob and its cluster. Missing objects are not an error.

        An object with the same name and another uid is not deleted.
        """

    async def delete_job(self, namespace: str, name: str, uid: str, resource_version: str) -> None:
        """Delete a BatchInference if it still has this resource version. Raises Refused."""

    async def post_event(self, body: Object) -> bool:
        """Post an Event, or increase the count of the existing Event of that name.

        Returns whether the Event already existed. Raises Refused.
        """

    async def get_schedule(self, namespace: str, name: str) -> Object | None:
        """Return the current state of a BatchInferenceSchedule; None if it is gone."""

    def list_runs(self, namespace: str, schedule: str) -> AsyncIterator[Object]:
        """Yield the BatchInferences with a schedule's label in the order of names (a live read).

        Their number is limited.
        """

    async def delete_run(self, namespace: str, name: str, uid: str) -> None:
        """Delete a BatchInference, even if it has changed. A missing object is not an error."""

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Status, *, kind: str = KIND
    ) -> Object | None:
        """Apply a merge patch to the status of an object, and return the stored object.

        Returns None if the object is gone. Raises Conflict, and Invalid if the
        CustomResourceDefinition rejects a value.
        """
