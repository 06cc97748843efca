"""The client of the API server with all requests of the operator."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from urllib.parse import quote

from batchinference.rendering import RAY_CLUSTER, RAY_JOB, RELEASED, KubeRayDeadlines
from batchinference.spec.job import KIND
from batchinference.spec.schedule import SCHEDULE_LABEL
from batchinference_operator.kube.api_errors import Refused, raise_for
from batchinference_operator.kube.http import MERGE_PATCH, is_error
from batchinference_operator.kube.object_client import (
    EVENT,
    LOCAL_QUEUE,
    PAGE,
    POD,
    WORKLOAD,
    ObjectClient,
    label_parameter,
    path_of,
)
from batchinference_operator.reconcile.kueue import quota_message
from batchinference_operator.status.job_status import Status
from batchinference_operator.status.last_warning import EventSummary
from batchinference_operator.status.ray_job_view import Object, RayJobView, owner_uid

MAX_EVENTS = 50
"""Maximum number of Events that are read about one object."""
_NO_REPLICAS = {"replicas": 0, "minReplicas": 0, "maxReplicas": 0}


class KubeClient(ObjectClient):
    """Sends the requests of the operator. Tests use another implementation."""

    async def last_warning(self, namespace: str, kind: str, name: str) -> str:
        """Return why a pod's containers do not start, or why a RayCluster has no pods. The result
        is the message of the object's last Event; empty if the Event is no warning."""
        about = f"involvedObject.kind={kind},involvedObject.name={name}"
        selector, of_pod = f"fieldSelector={quote(about)}", kind == POD
        last = EventSummary()
        async for event in self._list(path_of("Event", namespace), selector, MAX_EVENTS):
            last = max(last, EventSummary.of(event, of_pod=of_pod) or last)
        return last.message if last.warning else ""

    async def queued_reason(self, namespace: str, ray_job: RayJobView) -> str:
        """Return Kueue's message about why a RayJob is queued; empty if there is none."""
        label = label_parameter(f"kueue.x-k8s.io/job-uid={ray_job.uid}")
        path = f"{path_of(WORKLOAD, namespace)}?limit={PAGE}&{label}"
        status, answer = await self._request("GET", path)
        if status == HTTPStatus.NOT_FOUND:
            return "the API kueue.x-k8s.io/v1beta2 is missing: Kueue is not installed, or too old"
        raise_for(status, answer)
        reason = next(filter(None, map(quota_message, answer["items"])), "")
        return reason + (await self.local_queues(namespace) if LOCAL_QUEUE in reason else "")

    async def local_queues(self, namespace: str) -> str:
        """Return a sentence with the LocalQueues of a namespace; empty if they cannot be read."""
        try:
            path = f"{path_of(LOCAL_QUEUE, namespace)}?limit={PAGE}"
            status, answer = await self._request("GET", path)
            raise_for(status, answer)
        except Refused:
            return ""
        names = ", ".join(body["metadata"]["name"] for body in answer["items"])
        return f". LocalQueues of the namespace: {names or 'none'}"

    async def delete_job(self, namespace: str, name: str, uid: str, **version: str) -> None:
        """Delete a BatchInference with this uid, and with this `resourceVersion` if one is given.
        If there is no such BatchInference, this is not an error. Raises Refused."""
        await self._delete(path_of(KIND, namespace, name), uid, **version)

    def list_runs(self, namespace: str, schedule: str, limit: int) -> AsyncIterator[Object]:
        """Yield at most `limit` BatchInferences with a schedule's label, sorted by name."""
        path, label = path_of(KIND, namespace), label_parameter(f"{SCHEDULE_LABEL}={schedule}")
        return self._list(path, label, limit)

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Status, *, kind: str = KIND
    ) -> Object | None:
        """Apply a merge patch to the status of an object, and return the stored object; None if the
        object is gone. Raises Conflict and Refused."""
        body = {"metadata": {"resourceVersion": resource_version}, "status": patch}
        path = path_of(kind, namespace, name, "status")
        return await self._object("PATCH", path, body, MERGE_PATCH)

    async def post_event(self, body: Object) -> bool:
        """Post an Event, or increase the count of the existing Event with its name. Return whether
        the Event existed. Raises Conflict and Refused."""
        namespace = body["metadata"]["namespace"]
        status, answer = await self._request("POST", path_of(EVENT, namespace), body)
        if not is_error(status, answer, HTTPStatus.CONFLICT, "AlreadyExists"):
            raise_for(status, answer)
            return False
        path = path_of(EVENT, namespace, body["metadata"]["name"])
        # an empty patch returns the object, and needs no permission to read Events of this group
        status, answer = await self._request("PATCH", path, {}, MERGE_PATCH)
        raise_for(status, answer)
        count = (answer.get("series") or {}).get("count", 1) + 1
        series = {"count": count, "lastObservedTime": body["eventTime"]}
        status, answer = await self._request("PATCH", path, {"series": series}, MERGE_PATCH)
        raise_for(status, answer)
        return True

    async def release_cluster(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete the cluster of a finished RayJob, and set the RayJob's TTL to 0. Raises Conflict
        and Refused."""
        # the cluster first: after a failed deletion, a RayJob whose TTL is 0 is not released again
        await self._delete_cluster(namespace, ray_job)
        await self._patch(namespace, ray_job, {"spec": {"ttlSecondsAfterFinished": 0}})

    async def remove_workers(self, namespace: str, ray_job: RayJobView) -> None:
        """Let KubeRay delete the workers of a RayJob's cluster, if it exists, and keep the head.
        Raises Conflict and Refused."""
        cluster = await self._own_cluster(namespace, ray_job)
        groups = (cluster or {}).get("spec", {}).get("workerGroupSpecs") or []
        without_pods = [{**group, **_NO_REPLICAS} for group in groups]
        if cluster is None or groups == without_pods:
            return
        # if autoscaling stays enabled, KubeRay waits until the autoscaler chooses pods to delete
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
        """Change an annotation of a RayJob, so that Kueue checks its gated pods again."""
        await self._patch(namespace, ray_job, {"metadata": {"annotations": {RELEASED: now}}})

    async def _patch(self, namespace: str, ray_job: RayJobView, patch: Object) -> None:
        """Change a RayJob. A missing RayJob is not an error. Raises Conflict and Refused."""
        metadata = {**patch.get("metadata", {}), "uid": ray_job.uid}
        path = path_of(RAY_JOB, namespace, ray_job.name)
        await self._object("PATCH", path, {**patch, "metadata": metadata}, MERGE_PATCH)

    async def delete_ray_job(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete a RayJob and its cluster, if they exist, and no other objects of these names."""
        await self._delete(path_of(RAY_JOB, namespace, ray_job.name), ray_job.uid)
        # the cluster too, because KubeRay's finalizer may block the deletion of the RayJob
        await self._delete_cluster(namespace, ray_job)

    async def _delete_cluster(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete the RayCluster of a RayJob. KubeRay may be unavailable and not do this."""
        if (cluster := await self._own_cluster(namespace, ray_job)) is not None:
            path = path_of(RAY_CLUSTER, namespace, ray_job.cluster)
            await self._delete(path, cluster["metadata"]["uid"])

    async def _own_cluster(self, namespace: str, ray_job: RayJobView) -> Object | None:
        """Return the RayCluster that the status of a RayJob names if the RayJob owns it, or None.
        The status is untrusted: it may name the cluster of another team."""
        cluster = await self.get_object(RAY_CLUSTER, namespace, ray_job.cluster)
        if cluster is None or cluster["metadata"].get("namespace", namespace) != namespace:
            return None
        return cluster if owner_uid(cluster, RAY_JOB) == ray_job.uid else None
