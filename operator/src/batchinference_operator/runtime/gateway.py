"""The one place that talks to the API server."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Protocol

from kubernetes.aio.client import ApiClient

from batchinference.rendering import RAY_API_VERSION, RAY_JOB
from batchinference.spec.job import API_VERSION, KIND, PLURAL
from batchinference_operator.status.observations import Object
from batchinference_operator.status.status import Status

MERGE_PATCH = "application/merge-patch+json"
TIMEOUT_SECONDS = 30
_COLLECTIONS = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    RAY_JOB: (f"/apis/{RAY_API_VERSION}", "rayjobs"),
    KIND: (f"/apis/{API_VERSION}", PLURAL),
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
    ) -> bool:
        """Merge a patch into the status of a BatchInference. One that is gone is no error;
        returns whether it is there. Raises Conflict."""


class ApiServer:
    """The gateway to a real API server. It sends and takes plain dicts: the client's models are
    several times as dear."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def create(self, body: Object) -> None:
        path = _path(body["kind"], body["metadata"]["namespace"])
        status, answer = await request(self._client, "POST", path, body)
        # a quota under pressure answers 409 as well, and then nothing was created
        if not _is(status, answer, HTTPStatus.CONFLICT, "AlreadyExists"):
            _raise_for(status, answer)

    async def ray_job(self, namespace: str, name: str) -> Object | None:
        answer: Object
        status, answer = await request(self._client, "GET", _path(RAY_JOB, namespace, name))
        if _is_gone(status, answer):
            return None
        _raise_for(status, answer)
        return answer

    async def release(self, namespace: str, name: str) -> None:
        patch = {"spec": {"ttlSecondsAfterFinished": 0}}
        path = _path(RAY_JOB, namespace, name)
        status, answer = await request(self._client, "PATCH", path, patch, MERGE_PATCH)
        if not _is_gone(status, answer):
            _raise_for(status, answer)

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Status
    ) -> bool:
        body = {"metadata": {"resourceVersion": resource_version}, "status": patch}
        path = _path(KIND, namespace, name, "status")
        status, answer = await request(self._client, "PATCH", path, body, MERGE_PATCH)
        if _is_gone(status, answer):
            return False
        _raise_for(status, answer)
        return True


async def request(
    client: ApiClient,
    method: str,
    path: str,
    body: Any = None,
    content_type: str = "application/json",
) -> tuple[int, Any]:
    """The status and the answer: JSON as plain data, anything else as text."""
    headers = {"Accept": "application/json", "Content-Type": content_type}
    call = await client.param_serialize(
        method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
    )
    response = await client.call_api(*call, _request_timeout=TIMEOUT_SECONDS)
    content = await response.read()
    try:
        return response.status, json.loads(content)
    except ValueError:
        return response.status, content.decode(errors="replace").strip()


def _path(kind: str, namespace: str, *below: str) -> str:
    """The path of the objects of a kind, or of what is named below it."""
    root, plural = _COLLECTIONS[kind]
    return "/".join([root, "namespaces", namespace, plural, *below])


def _is(status: int, answer: Any, wanted: HTTPStatus, reason: str) -> bool:
    return status == wanted and isinstance(answer, dict) and answer.get("reason") == reason


def _is_gone(status: int, answer: Any) -> bool:
    """Whether the object is gone. A kind that the server does not know, or not yet, is a 404 too,
    but says nothing of the object."""
    return _is(status, answer, HTTPStatus.NOT_FOUND, "NotFound")


def words_of(answer: Any) -> str:
    """What the API server has to say."""
    return str(answer.get("message", "")) if isinstance(answer, dict) else str(answer)


def _raise_for(status: int, answer: Any) -> None:
    if status < HTTPStatus.BAD_REQUEST:
        return
    if status == HTTPStatus.CONFLICT:
        raise Conflict(words_of(answer))
    raise Refused(f"{status}: {words_of(answer)}")
