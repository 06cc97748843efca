"""What reconcile is told, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from batchinference.rendering import Backstop
from batchinference.spec.report import Report
from batchinference_operator.reconcile.turns import Turn
from batchinference_operator.status.crashes import Crash
from batchinference_operator.status.observations import Object, RayJobView
from batchinference_operator.status.pods import Loss, PodView
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
    oversized: int = 0
    """Bytes of a spec that is too large, of which only what guides the job's life is kept."""

    @classmethod
    def of(cls, body: Object) -> Self:
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
            deleting="deletionTimestamp" in metadata,
        )

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

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

    `ray_jobs` are those that bear the job's label, by name, and those under names that it uses.
    `losses` are what befell pods of the attempt that goes on, also such as are gone; `crashes` are
    its pods that ended by themselves. `report` is the driver's, when there is one;
    `driver_reached` tells whether the last poll was answered, even if there is no report yet, and
    `driver_polled` whether there was a poll. `words` are what Events say of pods that do not start
    and of a RayCluster without pods, and Kueue of a RayJob that it holds back, by their names.
    `turn` is the job's among those that may run at a time; None where it need not ask.
    """

    job: JobView
    ray_jobs: Mapping[str, RayJobView] = field(default_factory=dict)
    pods: tuple[PodView, ...] = ()
    losses: tuple[Loss, ...] = ()
    report: Report | None = None
    driver_reached: bool = False
    words: Mapping[str, str] = field(default_factory=dict)
    turn: Turn | None = None
    crashes: tuple[Crash, ...] = ()
    driver_polled: bool = True
    report_age: float = 0.0
    """Seconds since the last poll of the driver was answered."""
    driver_problem: str = ""
    """Why the last poll of the driver was not answered."""
    driver_unauthorized: bool = False
    """Whether the driver rejects the operator's token."""
    drivers: int = 0
    """How many drivers there are in all, each of which is asked how it goes."""
    unheard_pods: bool = False
    """Whether there are pods of which the watch has not told yet."""
    watched: bool = False
    """Whether the watches have told of the RayJob of the last attempt, and so of what befalls it.
    """

    @property
    def cluster(self) -> str:
        """The RayCluster of the last attempt; empty while it has none."""
        status = self.job.status
        seen = self.ray_jobs.get(status.get("rayJobName", ""))
        if seen is not None and seen.owner_uid == self.job.uid:
            return seen.cluster
        return str(status.get("rayClusterName", ""))

    @property
    def pods_of_attempt(self) -> list[PodView]:
        """Those of the last attempt, and not of one before, nor of another job of this name."""
        cluster = self.cluster
        return [pod for pod in self.pods if pod.cluster == cluster]


@dataclass(frozen=True)
class Actions:
    """What to do, in this order: stop drivers, remove RayJobs, create objects, end the wait of a
    finished RayJob's cluster, change when KubeRay ends a RayJob, write the status, look again after
    some seconds."""

    stop: tuple[RayJobView, ...] = ()
    """RayJobs whose drivers are to commit what is under way and end."""
    remove: tuple[RayJobView, ...] = ()
    """RayJobs that must not go on, or are not kept any longer."""
    create: tuple[Object, ...] = ()
    release: tuple[RayJobView, ...] = ()
    """RayJobs that have ended, whose clusters need not be kept any longer."""
    backstop: tuple[RayJobView, Backstop] | None = None
    """When KubeRay is to end the RayJob that goes on, where that is not what its spec says."""
    status: Status | None = None
    """The status that should stand; None leaves it alone."""
    again_after: float | None = None
    takes_turn: bool = False
    """Whether the status begins an attempt for which the job had to wait for its turn."""
