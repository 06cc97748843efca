"""Names, labels, metadata and other common parts of the objects that belong to a job."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from batchinference.plan.groups import HEAD_GROUP
from batchinference.spec.job import API_VERSION, GROUP, KIND

NAME_LABEL = f"{GROUP}/name"
"""Label with the name of the BatchInference of an object."""
ATTEMPT_LABEL = f"{GROUP}/attempt"
"""Label with the number of the attempt."""
GENERATION = f"{GROUP}/generation"
"""Annotation of a RayJob with the generation of the BatchInference at its creation."""
RELEASED = f"{GROUP}/released"
"""Annotation of a RayJob with the time of the operator's last change to it. The change makes Kueue
check its gated pods again."""
CHOICE = f"{GROUP}/choice"
"""Annotation of a RayJob with the choice of devices and capacity of its attempt, as JSON."""
DEVICE_HOUR = f"{GROUP}/device-hour"
"""Annotation of a pod with the price of one of its devices per hour."""
DEVICES_LABEL = f"{GROUP}/devices"
"""Label of a pod with the number of its devices: GPUs and all other kinds."""
CLUSTER_LABEL = "ray.io/cluster"
"""KubeRay's label of a pod with its RayCluster. There is no label with the RayJob."""
NODE_TYPE_LABEL = "ray.io/node-type"
POD_GROUP_LABEL = "ray.io/group"
"""KubeRay's labels of a pod: whether it is the head or a worker, and its group."""
EVICTABLE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Annotation of a pod. `false` keeps the cluster autoscaler from removing its node."""
RAY_CONTAINER = "ray"
"""The container that runs Ray in every pod. KubeRay requires it to be the first container."""
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "batchinference-operator"
UID_LENGTH = 8
DIGEST_LENGTH = 6


@dataclass(frozen=True)
class Names:
    """Names of the objects of one attempt of a job. All names but that of the RayJob contain the
    first characters of the job's uid. A job that is created again thus never uses objects of a
    deleted job."""

    job: str
    uid: str
    attempt: int

    @property
    def ray_job(self) -> str:
        """The name of the RayJob: the name of the job and the number of the attempt."""
        return f"{self.job}-{self.attempt}"

    def config_map(self, digest: str) -> str:
        """Return the name of the attempt's ConfigMap, whose files have this digest."""
        return f"{self.job}-{self.uid[:UID_LENGTH]}-{self.attempt}-{digest[:DIGEST_LENGTH]}"

    @property
    def secret(self) -> str:
        """The name of the Secret with the token of the Ray cluster."""
        return f"{self.job}-{self.uid[:UID_LENGTH]}-{self.attempt}-token"

    @property
    def head_budget(self) -> str:
        """The name of the PodDisruptionBudget of the head."""
        return f"{self.job}-{self.uid[:UID_LENGTH]}-{self.attempt}-head"

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all objects of the job, in any attempt."""
        return {MANAGED_BY: MANAGER, NAME_LABEL: self.job}


RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The container security context that the Pod Security level `restricted` requires."""


@dataclass(frozen=True)
class Owner:
    """The owner of other objects, by default a BatchInference. Kubernetes deletes the objects
    together with their owner."""

    name: str
    uid: str
    kind: str = KIND
    api_version: str = API_VERSION

    def reference(self) -> dict[str, Any]:
        """Return the owner reference. It has no `blockOwnerDeletion`, because OpenShift would then
        require the permission to set finalizers."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }


def metadata(
    name: str, namespace: str | None, labels: dict[str, str], owner: Owner | None
) -> dict[str, Any]:
    """Return the metadata of an object, with an owner reference if it has an owner."""
    result: dict[str, Any] = {"name": name, "labels": labels}
    if namespace:
        result["namespace"] = namespace
    if owner is not None:
        result["ownerReferences"] = [owner.reference()]
    return result


def dump(model: BaseModel) -> dict[str, Any]:
    """Return a model as JSON with camelCase names, without null fields."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def dump_given(model: BaseModel) -> dict[str, Any]:
    """Return a model like `dump`, but without fields that have their default value."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)


def templates_of(ray_cluster: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    """Return the name, maximum number of pods, and pod template of each group of a RayCluster."""
    workers = ray_cluster["workerGroupSpecs"]
    return [
        (HEAD_GROUP, 1, ray_cluster["headGroupSpec"]["template"]),
        *((group["groupName"], group["maxReplicas"], group["template"]) for group in workers),
    ]


def running_containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of a pod spec that run at the same time, with native sidecars."""
    first = pod.get("initContainers") or []
    sidecars = [one for one in first if one.get("restartPolicy") == "Always"]
    return [*(pod.get("containers") or []), *sidecars]
