"""Requests that change or delete a RayJob and its RayCluster."""

from __future__ import annotations

from batchinference.rendering import RAY_CLUSTER, RAY_JOB, RELEASED, KubeRayDeadlines
from batchinference_operator.kube.http import MERGE_PATCH
from batchinference_operator.kube.object_client import ObjectClient, path_of
from batchinference_operator.status.ray_job import Object, RayJobView, owner_uid

_NO_REPLICAS = {"replicas": 0, "minReplicas": 0, "maxReplicas": 0}


class RayClusterClient(ObjectClient):
    """Changes and deletes RayJobs and their RayClusters."""

    async def release_cluster(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete the cluster of a finished RayJob, and set the RayJob's TTL to 0. Raises Conflict
        and Refused."""
        # first, because a RayJob whose TTL is 0 is not released again if the deletion fails
        await self._delete_cluster(namespace, ray_job)
        await self._patch(namespace, ray_job, {"spec": {"ttlSecondsAfterFinished": 0}})

    async def remove_workers(self, namespace: str, ray_job: RayJobView) -> None:
        """Let KubeRay delete the workers of a RayJob's cluster, and keep the head.

        A missing cluster is not an error. Raises Conflict and Refused.
        """
        cluster = await self._own_cluster(namespace, ray_job)
        groups = (cluster or {}).get("spec", {}).get("workerGroupSpecs") or []
        without_pods = [{**group, **_NO_REPLICAS} for group in groups]
        if cluster is None or groups == without_pods:
            return
        # without this change, KubeRay would wait for the autoscaler to choose the pods to delete
        spec = {"enableInTreeAutoscaling": False, "workerGroupSpecs": without_pods}
        read = {name: cluster["metadata"][name] for name in ("uid", "resourceVersion")}
        path = path_of(RAY_CLUSTER, namespace, ray_job.cluster)
        await self._object("PATCH", path, {"metadata": read, "spec": spec}, MERGE_PATCH)

    async def set_deadlines(
        self, namespace: str, ray_job: RayJobView, deadlines: KubeRayDeadlines
    ) -> None:
        """Set the deadlines at which KubeRay ends a RayJob if the operator does not."""
        await self._patch(namespace, ray_job, {"spec": deadlines.fields})

    async def release_pods(self, namespace: str, ray_job: RayJobView, now: str) -> None:
        """Change an annotation of a RayJob, so that Kueue looks at its gated pods."""
        await self._patch(namespace, ray_job, {"metadata": {"annotations": {RELEASED: now}}})

    async def _patch(self, namespace: str, ray_job: RayJobView, patch: Object) -> None:
        """Change a RayJob. A missing one is not an error. Raises Conflict and Refused."""
        metadata = {**patch.get("metadata", {}), "uid": ray_job.uid}
        path = path_of(RAY_JOB, namespace, ray_job.name)
        await self._object("PATCH", path, {**patch, "metadata": metadata}, MERGE_PATCH)

    async def delete_ray_job(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete a RayJob and its cluster. Missing objects are not an error.

        Other objects with these names are not deleted.
        """
        await self._delete(path_of(RAY_JOB, namespace, ray_job.name), ray_job.uid)
        # the cluster too, because KubeRay's finalizer may block the deletion of the RayJob
        await self._delete_cluster(namespace, ray_job)

    async def _delete_cluster(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete the RayCluster of a RayJob. KubeRay normally does, but it may be unavailable."""
        if (cluster := await self._own_cluster(namespace, ray_job)) is not None:
            path = path_of(RAY_CLUSTER, namespace, ray_job.cluster)
            await self._delete(path, cluster["metadata"]["uid"])

    async def _own_cluster(self, namespace: str, ray_job: RayJobView) -> Object | None:
        """Return the RayCluster in the status of a RayJob if the RayJob owns it, otherwise None.

        The status is untrusted: it may name the cluster of another team.
        """
        cluster = await self.get_object(RAY_CLUSTER, namespace, ray_job.cluster)
        if cluster is None or cluster["metadata"].get("namespace", namespace) != namespace:
            return None
        return cluster if owner_uid(cluster, RAY_JOB) == ray_job.uid else None
