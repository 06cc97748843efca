"""Requests to the API server for objects of any kind: create, list, watch, read and delete."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp

from batchinference.rendering import HEAD_BUDGET, NAME_LABEL, RAY_API_VERSION, RAY_CLUSTER, RAY_JOB
from batchinference.spec.job import API_VERSION, KIND, PLURAL, SCHEDULE_KIND
from batchinference.spec.schedule import SCHEDULE_PLURAL
from batchinference_operator.kube.api_errors import Unreachable, raise_for
from batchinference_operator.kube.http import is_error, is_gone, open_stream, read_lines
from batchinference_operator.kube.limited_json import read_json
from batchinference_operator.kube.request_retries import RetryingClient
from batchinference_operator.status.ray_job_view import Object, is_name

POD = "Pod"
PAGE = 10
"""Number of objects per page of a list. The API server does not limit the bytes of a page, and an
object may have 1.5 MB. Lists do not set resourceVersion=0, because the API server would ignore the
page size. Since Kubernetes 1.34, it serves pages from its cache anyway."""
EVENT = "events.k8s.io"
"""The API group for writing Events. Events are read through the core API."""
WATCH_GRACE_SECONDS = 10.0
"""Seconds added to the timeout of a watch for its start and end."""
MAX_ERROR_BYTES = 4096
"""Maximum bytes read of a watch's error."""
MAX_LISTS = 4
"""Maximum number of list pages that are read at the same time. Objects of tenants can make a page
15 MB large, which takes several times as much memory."""
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


class ObjectClient(RetryingClient):
    """Sends requests for objects of any kind, as plain dicts.

    The models of the Kubernetes client would need several times as much CPU time. Each method
    raises Unreachable if the server does not respond or returns a transient error.
    """

    @cached_property
    def _list_slots(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(MAX_LISTS)

    async def create(self, body: Object) -> Object | None:
        """Return the object as created; None if its name is in use. Raises Conflict and Refused."""
        answer: Object
        # a field that the CRDs of an older KubeRay do not have must be an error, and not be dropped
        path = f"{path_of(body['kind'], body['metadata']['namespace'])}?fieldValidation=Strict"
        status, answer = await self._request("POST", path, body)
        # a ResourceQuota under contention also leads to 409, although no such object exists
        if is_error(status, answer, HTTPStatus.CONFLICT, "AlreadyExists"):
            return None
        raise_for(status, answer)
        return answer

    def list_all(self, kind: str, namespace: str) -> AsyncIterator[Object]:
        """Yield the objects of a kind that `_selector` selects. An empty namespace means all."""
        return self._list(path_of(kind, namespace), _selector(kind))

    async def _list(
        self, path: str, selector: str, limit: int = sys.maxsize
    ) -> AsyncIterator[Object]:
        """Yield at most `limit` selected objects. Only one page is in memory at a time."""
        async for items, _ in self._pages(path, selector):
            for body in items[:limit]:
                yield body
            limit -= len(items)
            if limit <= 0:
                return

    def list_pages(self, kind: str, namespace: str) -> AsyncIterator[tuple[list[Object], str]]:
        """Yield each page of a list, with the resource version of the list."""
        return self._pages(path_of(kind, namespace), _selector(kind))

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
        """Yield the events after a resource version. The server ends the watch after `seconds`.
        `accepted` is called when the server has accepted the watch. Raises Refused."""
        query = f"watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}"
        parts = filter(None, (query, _selector(kind), f"resourceVersion={quote(version)}"))
        path = f"{path_of(kind, namespace)}?{'&'.join(parts)}"
        timeout = seconds + WATCH_GRACE_SECONDS
        try:
            async with open_stream(self.session, path, timeout) as response:
                status, stream = response
                if status != HTTPStatus.OK:
                    raise_for(status, (await stream.read(MAX_ERROR_BYTES)).decode(errors="replace"))
                accepted()
                async for line in read_lines(stream):
                    yield await read_json(line)
        except (OSError, aiohttp.ClientError) as problem:
            raise Unreachable(str(problem) or "no answer") from problem

    async def get_object(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object from the API server; None if it is gone or `name` is invalid."""
        if not is_name(name):
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

    async def _delete(self, path: str, uid: str, **preconditions: str) -> None:
        preconditions["uid"] = uid
        body: Object = {"propagationPolicy": "Background", "preconditions": preconditions}
        status, answer = await self._request("DELETE", path, body)
        if not (is_gone(status, answer) or status == HTTPStatus.CONFLICT):
            raise_for(status, answer)


def label_parameter(selector: str) -> str:
    """Return the query parameter for a label selector."""
    return f"labelSelector={quote(selector)}"


def _selector(kind: str) -> str:
    """Return the parameter that limits RayJobs and Pods to those of jobs; empty for other kinds."""
    return label_parameter(NAME_LABEL) if kind in (RAY_JOB, POD) else ""


def path_of(kind: str, namespace: str, *name: str) -> str:
    """Return the API path of a kind in a namespace; with `name`, of an object or its subresource.

    Raises ValueError for an invalid name. Names may come from untrusted fields, and a text such as
    `..` must not lead to another path.
    """
    root, plural = _COLLECTIONS[kind]
    for part in (*([namespace] if namespace else []), *name):
        if not is_name(part):
            raise ValueError(f"{kind}: {str(part)[:64]!r} is not a name")
    scope = ["namespaces", namespace] if namespace else []
    return "/".join([root, *scope, plural, *name])
