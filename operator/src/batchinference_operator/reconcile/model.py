"""What reconcile is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchinference.spec.report import Report
from batchinference_operator.status.observations import Object, PodView, RayJobView
from batchinference_operator.status.status import Status


@dataclass(frozen=True)
class JobView:
    """A BatchInference as it stands in the API server."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    spec: dict[str, Any]
    status: Status
    created_at: str = ""
    deleting: bool = False

    @property
    def document(self) -> dict[str, Any]:
        """The resource in the form that the specification's parser takes."""
        return {
            "apiVersion": "batchinference.dev/v1alpha1",
            "kind": "BatchInference",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self.spec,
        }


@dataclass(frozen=True)
class Observed:
    """A job and all that was seen of its objects.

    `report` is the driver's, when there is one; `driver_reached` tells whether it was asked for
    and an answer came, even if that there is none.
    """

    job: JobView
    ray_job: RayJobView | None = None
    pods: tuple[PodView, ...] = ()
    report: Report | None = None
    driver_reached: bool = False


@dataclass(frozen=True)
class Actions:
    """What to do, in this order: create objects, end the wait of a finished RayJob's cluster,
    write the status, look again after some seconds."""

    create: tuple[Object, ...] = ()
    release: str | None = None
    """The RayJob whose cluster need not be kept any longer."""
    status: Status | None = None
    """The status that should stand; None leaves it alone."""
    again_after: float | None = None
