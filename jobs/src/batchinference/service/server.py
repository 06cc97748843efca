"""The HTTP server: routes, authentication, limits and errors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web
from obstore.exceptions import BaseError

from batchinference.service.api_error import ApiError, bad_request
from batchinference.service.api_keys import Keys
from batchinference.service.batch_files import Files, StoredFile
from batchinference.service.batches import Batches
from batchinference.service.cluster_client import Kubernetes
from batchinference.service.config import ServiceConfig
from batchinference.service.list_pages import Pages
from batchinference.service.uploads import LIMITS, UploadForm, UploadLimits, Uploads

MAX_PAGE = 100
"""Maximum number of items in a page of a list."""
NAMESPACE = web.RequestKey("namespace", str)
SENDING = web.RequestKey("sending", bool)
"""The key of a flag in a request: whether the content of a file is already being sent."""
_LOGGER = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _with_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Convert exceptions of a handler into error responses in the format of OpenAI's API."""
    try:
        return await handler(request)
    except ApiError as error:
        refusal = error
    except web.HTTPException as error:
        refusal = ApiError(HTTPStatus(error.status), error.reason)
    except TimeoutError:
        refusal = ApiError(HTTPStatus.REQUEST_TIMEOUT, "The request is sent too slowly")
    except (BaseError, OSError):
        _LOGGER.exception("the object store or the client does not answer")
        refusal = ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "The object store does not answer")
    except Exception:
        _LOGGER.exception("a request failed")
        refusal = ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error")
    if request.get(SENDING):
        raise ConnectionResetError  # shows the client that the file is incomplete
    response = web.json_response(refusal.body, status=refusal.status)
    response.force_close()  # the unread rest of this request would be read as the next request
    return response


class Service:
    """The handlers of the API."""

    def __init__(
        self, config: ServiceConfig, keys: Keys, cluster: Kubernetes, limits: UploadLimits = LIMITS
    ) -> None:
        self._config, self._keys, self._limits = config, keys, limits
        self._files = Files(config, self._is_file_in_use)
        self._batches = Batches(config, self._files, cluster)
        self._uploading, self._pages = asyncio.Semaphore(limits.at_once), Pages()
        self._in_parts = Uploads(self._files)

    async def _is_file_in_use(self, namespace: str, file: str) -> bool:
        return await self._batches.is_file_in_use(namespace, file)

    def application(self) -> web.Application:
        """Return the aiohttp application with all routes."""
        app = web.Application(middlewares=[_with_errors, self._authenticated])
        router = app.router
        router.add_get("/healthz", self._health)
        router.add_get("/v1/models", self._models)
        router.add_post("/v1/files", self._upload)
        router.add_post("/v1/uploads", self._upload_in_parts)
        router.add_post("/v1/uploads/{id}/{action:parts|complete|cancel}", self._upload_in_parts)
        router.add_get("/v1/files", self._list_files)
        router.add_get("/v1/files/{id}", self._file)
        router.add_delete("/v1/files/{id}", self._delete_file)
        router.add_get("/v1/files/{id}/content", self._content)
        router.add_post("/v1/batches", self._create_batch)
        router.add_get("/v1/batches", self._list_batches)
        router.add_get("/v1/batches/{id}", self._batch)
        router.add_post("/v1/batches/{id}/cancel", self._cancel_batch)
        return app

    @web.middleware
    async def _authenticated(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.path != "/healthz":
            sent = request.headers.getall("Authorization", [])
            request[NAMESPACE] = self._keys.namespace_of(sent[0] if len(sent) == 1 else "")
        return await handler(request)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _models(self, request: web.Request) -> web.Response:
        about = {"object": "model", "created": 0, "owned_by": "batchinference"}
        models = self._config.models_of(request[NAMESPACE])
        return _listed([{"id": name, **about} for name in models], more=False)

    async def _upload(self, request: web.Request) -> web.Response:
        async with self._uploading:
            form = UploadForm(request, self._limits)
            name = await form.name_of_file()
            namespace, expiry = request[NAMESPACE], form.expires_after
            stored = await self._files.add(namespace, name, form.content(), expiry)
        return web.json_response(stored.as_json())

    async def _upload_in_parts(self, request: web.Request) -> web.Response:
        namespace, info = request[NAMESPACE], request.match_info
        if (action := info.get("action")) == "parts":
            async with self._uploading:
                form = UploadForm(request, self._limits, "data")
                await form.name_of_file()
                upload = await self._in_parts.add_part(namespace, info["id"], form.content())
            return web.json_response(upload)
        async with asyncio.timeout(self._limits.grace_seconds):
            body = await request.read()
        if action is None:
            upload = await self._in_parts.create(namespace, body)
        elif action == "cancel":
            upload = await self._in_parts.cancel(namespace, info["id"])
        else:
            async with self._uploading:
                upload = await self._in_parts.complete(namespace, info["id"], body)
        return web.json_response(upload)

    async def _list_files(self, request: web.Request) -> web.Response:
        namespace, query = request[NAMESPACE], request.query
        after = query.get("after")
        purpose, order = query.get("purpose"), query.get("order", "desc")

        async def load() -> list[str]:
            batches = await self._batches.names(namespace)
            names = await self._files.list_ids(namespace, purpose, after, batches)
            return names if order == "asc" else names[::-1]

        names = await self._pages.after((namespace, purpose, order), load, after)
        limit = _limit(request, MAX_PAGE)
        items: list[dict[str, Any]] = []
        while names and len(items) < limit:
            page, names = names[: limit - len(items)], names[limit - len(items) :]
            files = await asyncio.gather(*(self._listed_file(namespace, one) for one in page))
            items += [each.as_json() for each in files if each]
        return _listed(items, more=bool(names))

    async def _listed_file(self, namespace: str, identifier: str) -> StoredFile | None:
        """Return a file; None if it does not exist, or if the state of its batch is too large."""
        try:
            return await self._get_file(namespace, identifier)
        except ApiError as error:
            if error.status not in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
                raise
            return None

    async def _get_file(self, namespace: str, identifier: str) -> StoredFile:
        """Return a file. If it is the error file of a batch that has ended early, write it first.
        Raises ApiError."""
        await self._batches.write_missing_error_file(namespace, identifier)
        return await self._files.get(namespace, identifier)

    async def _requested_file(self, request: web.Request) -> StoredFile:
        return await self._get_file(request[NAMESPACE], request.match_info["id"])

    async def _file(self, request: web.Request) -> web.Response:
        return web.json_response((await self._requested_file(request)).as_json())

    async def _delete_file(self, request: web.Request) -> web.Response:
        file = await self._requested_file(request)
        await self._files.delete(request[NAMESPACE], file)
        return web.json_response({"id": file.id, "object": "file", "deleted": True})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        file = await self._requested_file(request)
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        response.content_length = file.bytes
        await response.prepare(request)
        request[SENDING] = True
        async for chunk in self._files.content_of(file.parts):
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _create_batch(self, request: web.Request) -> web.Response:
        async with asyncio.timeout(self._limits.grace_seconds):
            headers, body = request.headers, await request.read()
        repeated = headers.get("x-stainless-retry-count", "0") != "0"
        key = headers.get("Idempotency-Key", "")
        batch = await self._batches.create(request[NAMESPACE], body, key, repeated=repeated)
        return web.json_response(batch)

    async def _list_batches(self, request: web.Request) -> web.Response:
        after, limit = request.query.get("after"), _limit(request, 20)
        batches, more = await self._batches.list_newest(request[NAMESPACE], after, limit)
        return _listed(batches, more=more)

    async def _batch(self, request: web.Request) -> web.Response:
        batch = await self._batches.get(request[NAMESPACE], request.match_info["id"])
        return web.json_response(batch)

    async def _cancel_batch(self, request: web.Request) -> web.Response:
        batch = await self._batches.cancel(request[NAMESPACE], request.match_info["id"])
        return web.json_response(batch)


def _limit(request: web.Request, default: int) -> int:
    """Return the requested page size, at most MAX_PAGE. Raises ApiError if it is invalid."""
    text = request.query.get("limit", str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and int(text)):
        raise bad_request("limit: expected a number of 1 or more", "limit")
    return min(int(text), MAX_PAGE)


def _listed(items: list[dict[str, Any]], *, more: bool) -> web.Response:
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    answer = {"object": "list", "data": items, "first_id": first, "last_id": last}
    return web.json_response({**answer, "has_more": more})
