"""Client for BatchInferences of all namespaces. It uses the ServiceAccount of the pod."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from batchinference.service.api_error import ApiError
from batchinference.spec.job import API_VERSION, PLURAL

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT = aiohttp.ClientTimeout(total=30)
PAGE = 500
"""Maximum number of objects per page of a list."""
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""The media type of a list that has only the metadata of objects."""
Object = dict[str, Any]
_REFUSALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Statuses of the API server for an object that it would refuse again."""


class Conflict(Exception):
    """There is an object with this name, or the object was changed at the same time."""


class Kubernetes:
    """Client for BatchInferences. `token` returns the current token, because tokens are rotated."""

    def __init__(
        self, server: str, token: Callable[[], str], tls: ssl.SSLContext | None = None
    ) -> None:
        self._server, self._token = server, token
        connector = aiohttp.TCPConnector(ssl=tls) if tls else None
        self._session = aiohttp.ClientSession(connector=connector, timeout=TIMEOUT)

    @classmethod
    def in_cluster(cls) -> Kubernetes:
        """Return a client for the cluster in which this pod runs."""
        host, port = (os.environ[f"KUBERNETES_SERVICE_{name}"] for name in ("HOST", "PORT"))
        tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        address = f"[{host}]" if ":" in host else host
        return cls(f"https://{address}:{port}", (ACCOUNT / "token").read_text, tls)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def create(self, namespace: str, document: Object) -> Object:
        """Create an object and return it. Raises Conflict if its name is in use."""
        created = await self._request("POST", namespace, "", json=document)
        if created is None:
            raise ApiError(HTTPStatus.FORBIDDEN, f"The namespace {namespace} does not exist")
        return created

    async def get(self, namespace: str, name: str) -> Object | None:
        """Return an object; None if no object has this name."""
        return await self._request("GET", namespace, name)

    async def patch(self, namespace: str, name: str, change: Object) -> Object | None:
        """Change fields of an object and return the object; None if no object has this name."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return await self._request("PATCH", namespace, name, json=change, headers=headers)

    async def list_metadata(self, namespace: str, label: str) -> list[Object]:
        """Return the metadata of all objects with a label."""
        items: list[Object] = []
        more = ""
        while True:
            query = {"labelSelector": label, "limit": str(PAGE), "continue": more}
            headers = {"Accept": METADATA}
            answer = await self._request("GET", namespace, "", params=query, headers=headers)
            # if there are no objects, `items` is null
            items += [item["metadata"] for item in (answer or {}).get("items") or []]
            more = (answer or {}).get("metadata", {}).get("continue", "")
            if not more:
                return items

    async def _request(
        self, method: str, namespace: str, name: str, **options: Any
    ) -> Object | None:
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}"
        url = f"{self._server}{path}/{name}" if name else self._server + path
        headers = {"Authorization": f"Bearer {self._token().strip()}", **options.pop("headers", {})}
        try:
            async with self._session.request(method, url, headers=headers, **options) as response:
                answer: Object = await response.json(content_type=None)
        except (TimeoutError, aiohttp.ClientError, ValueError):
            raise _unavailable() from None
        return _checked(response.status, answer)


def _checked(status: int, answer: Object) -> Object | None:
    """Return the answer of the API server; None for 404. Raises ApiError or Conflict."""
    if status == HTTPStatus.NOT_FOUND:
        return None
    if status == HTTPStatus.CONFLICT:
        raise Conflict
    if status in _REFUSALS:
        message = f"The cluster refuses the batch: {answer.get('message', status)}"
        raise ApiError(HTTPStatus.FORBIDDEN, message)
    if status >= HTTPStatus.BAD_REQUEST:
        raise _unavailable()
    return answer


def _unavailable() -> ApiError:
    message = "The API server of the cluster does not answer. Try again later"
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message)
