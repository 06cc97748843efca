"""The one place that talks to the API server."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Protocol

from kubernetes.aio.client import ApiClient

from batchinference.spec.job import GROUP, PLURAL, VERSION
from batchinference_operator.status.observations import Object
from batchinference_operator.status.status import Status

MERGE_PATCH = "application/merge-patch+json"
TIMEOUT_SECONDS = 30
_COLLECTIONS = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "RayJob": ("/apis/ray.io/v1", "rayjobs"),
}


class Conflict(Exception):
    """The object has changed meanwhile: look again."""


class Refused(Exception):
    """The API server said no, in these words."""


class Gateway(Protocol):
    """What the operator asks of the API server. Tests put another in its place."""

    async def create(self, body: Object) -> None:
        """Create an object; one that exists already is as good. Raises Refused."""

    async def ray_job(self, namespace: str, name: str) -> Object | None:
        """A RayJob as it stands now, or None."""

    async def release(self, namespace: str, name: str) -> None:
        """End the wait of a finished RayJob's cluster."""

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Status
    ) -> None:
        """Merge a patch into the status of a BatchInference. One that is gone is no error.
        Raises Conflict."""


class ApiServer:
    """The gateway to a real API server. It sends and takes plain dicts: the client's models are
    several times as dear."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def create(self, body: Object) -> None:
        root, plural = _COLLECTIONS[body["kind"]]
        namespace = body["metadata"]["namespace"]
        status, answer = await self._request(
            "POST", f"{root}/namespaces/{namespace}/{plural}", body
        )
        if status == HTTPStatus.CONFLICT:
            return
        _raise_for(status, answer)

    async def ray_job(self, namespace: str, name: str) -> Object | None:
        answer: Object
        status, answer = await self._request("GET", _ray_job_path(namespace, name))
        if status == HTTPStatus.NOT_FOUND:
            return None
        _raise_for(status, answer)
        return answer

    async def release(self, namespace: str, name: str) -> None:
        patch = {"spec": {"ttlSecondsAfterFinished": 0}}
        path = _ray_job_path(namespace, name)
        status, answer = await self._request("PATCH", path, patch, MERGE_PATCH)
        if status != HTTPStatus.NOT_FOUND:
            _raise_for(status, answer)

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Status
    ) -> None:
        body = {"metadata": {"resourceVersion": resource_version}, "status": patch}
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}/status"
        status, answer = await self._request("PATCH", path, body, MERGE_PATCH)
        if status != HTTPStatus.NOT_FOUND:
            _raise_for(status, answer)

    async def _request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        request = await self._client.param_serialize(
            method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        response = await self._client.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
        content = await response.read()
        return response.status, json.loads(content) if content else {}


def _ray_job_path(namespace: str, name: str) -> str:
    return f"/apis/ray.io/v1/namespaces/{namespace}/rayjobs/{name}"


def _raise_for(status: int, answer: Any) -> None:
    if status < HTTPStatus.BAD_REQUEST:
        return
    message = answer.get("message", "") if isinstance(answer, dict) else str(answer)
    if status == HTTPStatus.CONFLICT:
        raise Conflict(message)
    raise Refused(f"{status}: {message}")
