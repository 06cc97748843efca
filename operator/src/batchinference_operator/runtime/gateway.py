"""What the operator asks of the API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from batchinference.rendering import Backstop
from batchinference_operator.status.observations import Object, RayJobView
from batchinference_operator.status.status import Status

POD = "Pod"
RAY_CLUSTER = "RayCluster"
PAGE = 10
"""Objects of a list that are asked for at a time. The API server bounds a page by their number, not
by bytes: one object may have 1.5 MB, and takes several times as much while it is read."""


class Conflict(Exception):
    """The object has changed meanwhile: look again."""


class Refused(Exception):
    """The API server said no, in these words."""


class Forbidden(Refused):
    """The operator lacks the right for a request."""


class Invalid(Refused):
    """The API server does not know a field or a value of an object: its definition is older."""


class Unreachable(Refused):
    """The API server gave no answer, or one that another try may change: it is away, overloaded, or
    waits in vain for something behind it, such as a webhook."""


class Gateway(Protocol):
    """What the operator asks of the API server. Tests put another in its place. Each call raises
    Unreachable when the server is."""

    async def create(self, body: Object) -> Object | None:
        """Create an object, and return what was made of it; None when one of its name exists
        already, which is as good. Raises Refused."""

    def all(self, kind: str, namespace: str) -> AsyncIterator[Object]:
        """Every object of a kind, in a namespace or, when that is empty, in all."""

    async def pods(self, namespace: str, job: str) -> set[str]:
        """The names of the pods that a job has now."""

    async def ray_job(self, namespace: str, name: str) -> Object | None:
        """A RayJob as it stands now, or None."""

    async def warning(self, namespace: str, kind: str, name: str) -> str:
        """What Events say of why the containers of a pod do not start, or why a RayCluster gets no
        pods; empty when nothing is said."""

    async def why_queued(self, namespace: str, seen: RayJobView) -> str:
        """Why Kueue holds a RayJob back, in its words; empty when it says nothing."""

    async def release(self, namespace: str, seen: RayJobView) -> None:
        """End the wait of a finished RayJob's cluster, and delete it."""

    async def limit(self, namespace: str, seen: RayJobView, backstop: Backstop) -> None:
        """Have KubeRay end a RayJob by these deadlines. What is gone is no error. Raises Conflict
        and Refused."""

    async def remove(self, namespace: str, seen: RayJobView) -> None:
        """Delete a RayJob and its cluster. What is gone, or bears the name only, is no error."""

    async def post_event(self, body: Object) -> bool:
        """Post an Event, or count it on the one of its name; returns whether there was one. Raises
        Refused."""

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Status
    ) -> Object | None:
        """Merge a patch into the status of a BatchInference, and return what was made of it; None
        when it is gone. Raises Conflict, and Invalid where the definition does not know a value."""
