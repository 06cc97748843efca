"""Names, labels and annotations of the objects that belong to a job."""

from __future__ import annotations

from dataclasses import dataclass

from batchinference.spec.job import GROUP

NAME_LABEL = f"{GROUP}/name"
"""Label with the name of the BatchInference that an object belongs to."""
ATTEMPT_LABEL = f"{GROUP}/attempt"
"""Label with the number of the attempt."""
GENERATION = f"{GROUP}/generation"
"""Annotation of a RayJob with the generation of the BatchInference that it was created from."""
RELEASED = f"{GROUP}/released"
"""Annotation of a RayJob with the time at which the operator last changed it so that Kueue checks
its gated pods again."""
CHOICE = f"{GROUP}/choice"
"""Annotation of a RayJob with the choice of devices and capacity of its attempt, as JSON."""
DEVICE_HOUR = f"{GROUP}/device-hour"
"""Annotation of a pod with the price of one of its devices per hour."""
DEVICES_LABEL = f"{GROUP}/devices"
"""Label of a pod with the number of its devices: GPUs and all other kinds."""
CLUSTER_LABEL = "ray.io/cluster"
"""Label by KubeRay with the RayCluster of a pod. No label contains the RayJob."""
NODE_TYPE_LABEL = "ray.io/node-type"
POD_GROUP_LABEL = "ray.io/group"
"""Labels by KubeRay: whether a pod is the head or a worker, and its worker group."""
EVICTABLE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Annotation of a pod: `false` keeps the cluster autoscaler from removing its node."""
RAY_CONTAINER = "ray"
"""The container that runs Ray in every pod. KubeRay requires it to be the first container."""
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "batchinference-operator"
UID_LENGTH = 8
DIGEST_LENGTH = 6


@dataclass(frozen=True)
class Names:
    """Names of the objects of one attempt of a job.

    The names of the ConfigMap and the Secret contain the first characters of the job's uid, so that
    a job that was deleted and created again never uses the objects of the deleted job.
    """

    job: str
    uid: str
    attempt: int

    @property
    def ray_job(self) -> str:
        return f"{self.job}-{self.attempt}"

    def config_map(self, digest: str) -> str:
        """Return the name of the attempt's ConfigMap, whose files have this digest."""
        return f"{self.job}-{self.uid[:UID_LENGTH]}-{self.attempt}-{digest[:DIGEST_LENGTH]}"

    @property
    def secret(self) -> str:
        return f"{self.job}-{self.uid[:UID_LENGTH]}-{self.attempt}-token"

    @property
    def head_budget(self) -> str:
        return f"{self.job}-{self.uid[:UID_LENGTH]}-{self.attempt}-head"

    @property
    def labels(self) -> dict[str, str]:
        return {MANAGED_BY: MANAGER, NAME_LABEL: self.job}
