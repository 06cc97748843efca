"""The client of the API server with all requests of the operator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus
from urllib.parse import quote

from batchinference.spec.job import KIND
from batchinference.spec.schedule import SCHEDULE_LABEL
from batchinference_operator.kube.errors import Refused, raise_for
from batchinference_operator.kube.http import MERGE_PATCH, is_error
from batchinference_operator.kube.object_client import (
    EVENT,
    LOCAL_QUEUE,
    PAGE,
    POD,
    WORKLOAD,
    label_parameter,
    path_of,
)
from batchinference_operator.kube.ray_clusters import RayClusterClient
from batchinference_operator.reconcile.kueue import quota_message
from batchinference_operator.status.job_status import Status
from batchinference_operator.status.last_warning import EventSummary
from batchinference_operator.status.ray_job import Object, RayJobView

MAX_RUNS = 1000
"""Maximum number of runs that are listed for a schedule. The history limits allow 200 finished
runs. A tenant with more runs must not delay other schedules."""
MAX_EVENTS = 50
"""Maximum number of Events that are read about one object."""


class KubeClient(RayClusterClient):
    """Sends the requests of the operator. Tests use another implementation."""

    async def last_warning(self, namespace: str, kind: str, name: str) -> str:
        """Return why a pod's containers do not start, or why a RayCluster has no pods.

        This is the message of the last Event about the object, if it is a warning; else empty.
        """
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
        """Delete a BatchInference, only in this `resourceVersion` if one is given. A missing or
        another one is not an error. Raises Refused."""
        await self._delete(path_of(KIND, namespace, name), uid, **version)

    def list_runs(self, namespace: str, schedule: str) -> AsyncIterator[Object]:
        """Yield at most MAX_RUNS BatchInferences with a schedule's label, sorted by name."""
        path, label = path_of(KIND, namespace), label_parameter(f"{SCHEDULE_LABEL}={schedule}")
        return self._list(path, label, MAX_RUNS)

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Status, *, kind: str = KIND
    ) -> Object | None:
        """Apply a merge patch to the status of an object, and return the stored object.

        Returns None if the object is gone. Raises Conflict, and Refused if the
        CustomResourceDefinition rejects a value.
        """
        body = {"metadata": {"resourceVersion": resource_version}, "status": patch}
        path = path_of(kind, namespace, name, "status")
        return await self._object("PATCH", path, body, MERGE_PATCH)

    async def post_event(self, body: Object) -> bool:
        """Post an Event, or increase the count of the existing Event with its name.

        Returns whether it already existed. Raises Refused.
        """
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
