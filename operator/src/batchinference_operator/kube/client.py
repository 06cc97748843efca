"""The requests of the operator to the API server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client import ApiClient

from batchinference.rendering import (
    HEAD_BUDGET,
    NAME_LABEL,
    RAY_API_VERSION,
    RAY_CLUSTER,
    RAY_JOB,
    RELEASED,
    KubeRayDeadlines,
)
from batchinference.spec.job import API_VERSION, KIND, PLURAL, SCHEDULE_KIND
from batchinference.spec.schedule import SCHEDULE_LABEL, SCHEDULE_PLURAL
from batchinference_operator.kube.errors import Refused, Unreachable, raise_for
from batchinference_operator.kube.http import (
    MERGE_PATCH,
    OnRequest,
    RateLimiter,
    is_error,
    is_gone,
    open_stream,
    read_lines,
    send_recorded,
    with_retries,
)
from batchinference_operator.kube.json_reader import read_json
from batchinference_operator.status.job_status import Status
from batchinference_operator.status.observed_events import (
    EventSummary,
    is_relevant,
    last_warning,
    quota_message,
)
from batchinference_operator.status.ray_job import Object, RayJobView, is_name, owner_uid

POD = "Pod"
PAGE = 10
"""Objects per page of a list. The API server limits the objects of a page but not its size, and an
object may have 1.5 MB. Lists do not set resourceVersion=0, because the API server then ignores the
page size. Since Kubernetes 1.34, it serves pages from its cache."""
MAX_RUNS = 1000
"""Maximum number of objects with the label of a schedule in a list. The history limits allow 200
finished runs. A tenant with more runs must not delay other schedules."""
EVENT = "events.k8s.io"
"""The API group for writing Events. They are read through the core API."""
WATCH_GRACE_SECONDS = 10.0
"""Seconds added to the timeout of a watch for its start and end."""
MAX_ERROR_BYTES = 4096
MAX_ERROR_CHARS = 200
"""Maximum length of an unexpected response in an error message."""
MAX_EVENTS = 50
"""Maximum number of Events read about one object."""
MAX_LISTS = 4
"""Maximum number of list pages read at the same time. Objects of tenants can make a page 15 MB
large, and it takes a multiple of this size in memory."""
_NO_REPLICAS = {"replicas": 0, "minReplicas": 0, "maxReplicas": 0}
_LABEL_SELECTORS = {RAY_JOB: NAME_LABEL, POD: NAME_LABEL}
WORKLOAD = "Workload"
"""The object that Kueue creates for each RayJob in a LocalQueue."""
LOCAL_QUEUE = "LocalQueue"
_COLLECTIONS = {
    POD: ("/api/v1", "pods"),
    WORKLOAD: ("/apis/kueue.x-k8s.io/v1beta2", "workloads"),
    LOCAL_QUEUE: ("/apis/kueue.x-k8s.io/v1beta2", "localqueues"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    EVENT: ("/apis/events.k8s.io/v1", "events"),
    "Secret": ("/api/v1", "secrets"),
    HEAD_BUDGET: ("/apis/policy/v1", "poddisruptionbudgets"),
    RAY_JOB: (f"/apis/{RAY_API_VERSION}", "rayjobs"),
    RAY_CLUSTER: (f"/apis/{RAY_API_VERSION}", "rayclusters"),
    KIND: (f"/apis/{API_VERSION}", PLURAL),
    SCHEDULE_KIND: (f"/apis/{API_VERSION}", SCHEDULE_PLURAL),
}


class KubeClient:
    """Sends requests to an API server. Tests use another implementation.

    Each method raises Unreachable if the server does not respond or returns a transient error.

    It sends and receives plain dicts, because the models of the Kubernetes client are several
    times as expensive.
    """

    def __init__(
        self,
        client: ApiClient,
        on_request: OnRequest = lambda *_: None,
        rate: RateLimiter | None = None,
    ) -> None:
        self._client = client
        self._on_request = on_request
        self._rate = rate or RateLimiter()
        self._list_slots = asyncio.Semaphore(MAX_LISTS)

    async def _request(self, *call: Any) -> tuple[int, Any]:
        return await with_retries(lambda: self._send(*call))

    async def _send(self, *call: Any) -> tuple[int, Any]:
        await self._rate.wait()
        try:
            status, answer, retry_after = await send_recorded(self._client, self._on_request, *call)
        except (OSError, aiohttp.ClientError) as problem:
            raise Unreachable(str(problem) or "no answer") from problem
        self._rate.pause(retry_after)
        if status < HTTPStatus.BAD_REQUEST and not isinstance(answer, dict):
            raise Unreachable(f"{status}: no JSON object: {str(answer)[:MAX_ERROR_CHARS]!r}")
        return status, answer

    async def create(self, body: Object) -> Object | None:
        """Create an object and return it as stored. Raises Refused.

        Returns None if an object of that name already exists, which is not an error.
        """
        answer: Object
        # an older KubeRay must return an error for an unknown field instead of dropping it
        path = f"{path_of(body['kind'], body['metadata']['namespace'])}?fieldValidation=Strict"
        status, answer = await self._request("POST", path, body)
        # a ResourceQuota under contention also returns 409, but then no object exists
        if is_error(status, answer, HTTPStatus.CONFLICT, "AlreadyExists"):
            return None
        raise_for(status, answer)
        return answer

    def list_all(self, kind: str, namespace: str) -> AsyncIterator[Object]:
        """Yield every object of a kind in a namespace, or in all namespaces if it is empty."""
        return self._list(
            path_of(kind, namespace), _label_parameter(_LABEL_SELECTORS.get(kind, ""))
        )

    async def _list(
        self, path: str, selector: str, limit: int = sys.maxsize
    ) -> AsyncIterator[Object]:
        """Yield the selected objects, at most `limit`. One page is in memory at a time."""
        async for items, _ in self._pages(path, selector):
            for body in items[:limit]:
                yield body
            limit -= len(items)
            if limit <= 0:
                return

    def list_pages(self, kind: str, namespace: str) -> AsyncIterator[tuple[list[Object], str]]:
        """Yield each page of a list, with the resource version of the list."""
        return self._pages(
            path_of(kind, namespace), _label_parameter(_LABEL_SELECTORS.get(kind, ""))
        )

    async def _pages(self, path: str, selector: str) -> AsyncIterator[tuple[list[Object], str]]:
        more: str | None = ""
        while more is not None:
            after = more and f"continue={quote(more)}"
            query = "&".join(filter(None, (f"limit={PAGE}", selector, after)))
            async with self._list_slots:
                status, answer = await self._request("GET", f"{path}?{query}")
            raise_for(status, answer)
            yield answer["items"], answer["metadata"].get("resourceVersion", "")
            more = answer["metadata"].get("continue") or None

    async def watch(
        self,
        kind: str,
        namespace: str,
        version: str,
        seconds: int,
        accepted: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[Object, None]:
        """Yield the events after a resource version, until the server ends the watch.

        The server ends it after `seconds`. `accepted` is called when the watch starts. Raises
        Refused.
        """
        query = f"watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}"
        selector = _label_parameter(_LABEL_SELECTORS.get(kind, ""))
        query = "&".join(filter(None, (query, selector, f"resourceVersion={quote(version)}")))
        path = f"{path_of(kind, namespace)}?{query}"
        timeout = seconds + WATCH_GRACE_SECONDS
        try:
            async with open_stream(self._client, self._on_request, path, timeout) as found:
                status, stream = found
                if status != HTTPStatus.OK:
                    raise_for(status, (await stream.read(MAX_ERROR_BYTES)).decode(errors="replace"))
                accepted()
                async for line in read_lines(stream):
                    yield await read_json(line)
        except (OSError, aiohttp.ClientError) as problem:
            raise Unreachable(str(problem) or "no answer") from problem

    async def get_ray_job(self, namespace: str, name: str) -> Object | None:
        """Return the current state of a RayJob (a live read); None if it is gone."""
        return await self.get_object(RAY_JOB, namespace, name)

    async def get_object(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return the current state of an object (a live read); None if it is gone."""
        if not is_name(name):  # such as a text in an annotation of a user
            return None
        return await self._object("GET", path_of(kind, namespace, name))

    async def _object(self, *call: Any) -> Object | None:
        """Send a request for one object and return the object; None if it is gone."""
        answer: Object
        status, answer = await self._request(*call)
        if is_gone(status, answer):
            return None
        raise_for(status, answer)
        return answer

    async def last_warning(self, namespace: str, kind: str, name: str) -> str:
        """Return why a pod's containers do not start, or why a RayCluster has no pods.

        This is the message of the last Event about it; empty if the Event is not a warning.
        """
        about = f"involvedObject.kind={kind},involvedObject.name={name}"
        selector, of_pod = f"fieldSelector={quote(about)}", kind == POD
        events = self._list(path_of("Event", namespace), selector, MAX_EVENTS)
        return last_warning([
            EventSummary.of(event, of_pod=of_pod)
            async for event in events
            if is_relevant(event, of_pod=of_pod)
        ])  # fmt: skip

    async def queued_reason(self, namespace: str, ray_job: RayJobView) -> str:
        """Return Kueue's message on why a RayJob is queued; empty if there is none."""
        label = _label_parameter(f"kueue.x-k8s.io/job-uid={ray_job.uid}")
        path = f"{path_of(WORKLOAD, namespace)}?limit={PAGE}&{label}"
        status, answer = await self._request("GET", path)
        if status == HTTPStatus.NOT_FOUND:  # Kueue is absent, or too old
            return ""
        raise_for(status, answer)
        found = [quota_message(body) for body in answer["items"]]
        reason = next((message for message in found if message), "")
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

    async def release_cluster(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete the cluster of a finished RayJob, and set the RayJob's TTL to 0."""
        # first, because the patch marks the RayJob as released: then the deletion is not retried
        await self._delete_cluster(namespace, ray_job)
        patch = {"spec": {"ttlSecondsAfterFinished": 0}}
        path = path_of(RAY_JOB, namespace, ray_job.name)
        await self._object("PATCH", path, patch, MERGE_PATCH)

    async def remove_workers(self, namespace: str, ray_job: RayJobView) -> None:
        """Let KubeRay delete the workers of a RayJob's cluster, and keep the head.

        A missing cluster is not an error. Raises Conflict and Refused.
        """
        cluster = await self._own_cluster(namespace, ray_job)
        groups = (cluster or {}).get("spec", {}).get("workerGroupSpecs") or []
        without_pods = [{**group, **_NO_REPLICAS} for group in groups]
        if cluster is None or groups == without_pods:
            return
        # otherwise KubeRay would let the autoscaler choose the pods to delete
        spec = {"enableInTreeAutoscaling": False, "workerGroupSpecs": without_pods}
        read = {name: cluster["metadata"][name] for name in ("uid", "resourceVersion")}
        path = path_of(RAY_CLUSTER, namespace, ray_job.cluster)
        await self._object("PATCH", path, {"metadata": read, "spec": spec}, MERGE_PATCH)

    async def set_backstop(
        self, namespace: str, ray_job: RayJobView, backstop: KubeRayDeadlines
    ) -> None:
        """Set the backstop deadlines after which KubeRay ends a RayJob.

        A missing RayJob is not an error. Raises Conflict and Refused.
        """
        await self._patch(namespace, ray_job, {"spec": backstop.fields})

    async def release_pods(self, namespace: str, ray_job: RayJobView, now: str) -> None:
        """Change an annotation of a RayJob, so that Kueue looks at its gated pods.

        A missing RayJob is not an error. Raises Conflict and Refused.
        """
        await self._patch(namespace, ray_job, {"metadata": {"annotations": {RELEASED: now}}})

    async def _patch(self, namespace: str, ray_job: RayJobView, patch: Object) -> None:
        metadata = {**patch.get("metadata", {}), "uid": ray_job.uid}
        path = path_of(RAY_JOB, namespace, ray_job.name)
        await self._object("PATCH", path, {**patch, "metadata": metadata}, MERGE_PATCH)

    async def delete_ray_job(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete a RayJob and its cluster. Missing objects are not an error.

        An object with the same name and another uid is not deleted.
        """
        await self._delete(path_of(RAY_JOB, namespace, ray_job.name), ray_job.uid)
        # KubeRay's finalizer may block the deletion of the RayJob
        await self._delete_cluster(namespace, ray_job)

    async def _delete_cluster(self, namespace: str, ray_job: RayJobView) -> None:
        """Delete the RayCluster of a RayJob.

        KubeRay normally deletes a RayJob's own cluster, but it may be unavailable.
        """
        if (cluster := await self._own_cluster(namespace, ray_job)) is not None:
            path = path_of(RAY_CLUSTER, namespace, ray_job.cluster)
            await self._delete(path, cluster["metadata"]["uid"])

    async def _own_cluster(self, namespace: str, ray_job: RayJobView) -> Object | None:
        """Return the RayCluster that a RayJob owns; None if there is none.

        The owner is checked because the cluster's name comes from a status that users may write.
        """
        cluster = await self.get_object(RAY_CLUSTER, namespace, ray_job.cluster)
        if cluster is None or cluster["metadata"].get("namespace", namespace) != namespace:
            return None
        return cluster if owner_uid(cluster, RAY_JOB) == ray_job.uid else None

    async def delete_job(self, namespace: str, name: str, uid: str, resource_version: str) -> None:
        """Delete a BatchInference if it still has this resource version. Raises Refused."""
        await self._delete(path_of(KIND, namespace, name), uid, resourceVersion=resource_version)

    async def _delete(self, path: str, uid: str, **preconditions: str) -> None:
        preconditions["uid"] = uid
        body: Object = {"propagationPolicy": "Background", "preconditions": preconditions}
        status, answer = await self._request("DELETE", path, body)
        if not (is_gone(status, answer) or status == HTTPStatus.CONFLICT):
            raise_for(status, answer)

    async def get_schedule(self, namespace: str, name: str) -> Object | None:
        """Return the current state of a BatchInferenceSchedule; None if it is gone."""
        return await self.get_object(SCHEDULE_KIND, namespace, name)

    def list_runs(self, namespace: str, schedule: str) -> AsyncIterator[Object]:
        """Yield the BatchInferences with a schedule's label in the order of names (a live read).

        Their number is limited.
        """
        path, label = path_of(KIND, namespace), _label_parameter(f"{SCHEDULE_LABEL}={schedule}")
        return self._list(path, label, MAX_RUNS)

    async def delete_run(self, namespace: str, name: str, uid: str) -> None:
        """Delete a BatchInference, even if it has changed. A missing object is not an error."""
        await self._delete(path_of(KIND, namespace, name), uid)

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Status, *, kind: str = KIND
    ) -> Object | None:
        """Apply a merge patch to the status of an object, and return the stored object.

        Returns None if the object is gone. Raises Conflict, and Invalid if the
        CustomResourceDefinition rejects a value.
        """
        body = {"metadata": {"resourceVersion": resource_version}, "status": patch}
        path = path_of(kind, namespace, name, "status")
        return await self._object("PATCH", path, body, MERGE_PATCH)

    async def post_event(self, body: Object) -> bool:
        """Post an Event, or increase the count of the existing Event of that name.

        Returns whether the Event already existed. Raises Refused.
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


def _label_parameter(selector: str) -> str:
    """Return the query parameter for a label selector; empty for an empty selector."""
    return f"labelSelector={quote(selector)}" if selector else ""


def path_of(kind: str, namespace: str, *name: str) -> str:
    """Return the API path of a kind in a namespace. With `name`, the path of an object, or of its
    subresource.

    Raises ValueError for a text that is no name. Users can write a text such as `..` into their
    objects, and it must not lead to another path."""
    root, plural = _COLLECTIONS[kind]
    for part in (*([namespace] if namespace else []), *name):
        if not is_name(part):
            raise ValueError(f"{kind}: {str(part)[:64]!r} is no name")
    scope = ["namespaces", namespace] if namespace else []
    return "/".join([root, *scope, plural, *name])
