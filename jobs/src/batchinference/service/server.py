"""The HTTP server: routes, authentication, limits and errors."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import BodyPartReader, web
from obstore.exceptions import BaseError

from batchinference.service.api_error import ApiError, bad_request, not_found
from batchinference.service.batches import Batches, page_of
from batchinference.service.config import ServiceConfig
from batchinference.service.files import Files
from batchinference.service.keys import Keys
from batchinference.service.kubernetes import Kubernetes

UPLOADS = 8
"""Uploads that a replica receives at the same time. Others wait."""
GRACE_SECONDS = 60.0
MIN_BYTES_PER_SECOND = 10_000
"""An upload that is slower than this, after a grace period, is ended."""
CHUNK = 2**18
MAX_FIELD = 1024
MAX_FIELDS = 16
MAX_PAGE = 100
NAMESPACE = web.RequestKey("namespace", str)
SENDING = web.RequestKey("sending", bool)
"""Whether the answer has begun."""
_LOGGER = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _with_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer errors in the form of OpenAI."""
    try:
        return await handler(request)
    except ApiError as error:
        found = error
    except web.HTTPException as error:
        found = ApiError(HTTPStatus(error.status), error.reason)
    except TimeoutError:
        found = ApiError(HTTPStatus.REQUEST_TIMEOUT, "The request is sent too slowly")
    except (BaseError, OSError):
        _LOGGER.exception("the object store or the client does not answer")
        found = ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "The object store does not answer")
    except Exception:
        _LOGGER.exception("a request failed")
        found = ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error")
    if request.get(SENDING):
        raise ConnectionResetError  # the client must not take a part of a file for all of it
    response = web.json_response(found.body, status=found.status)
    if found.status != HTTPStatus.NOT_FOUND:
        response.force_close()  # a part of the body may be unread
    return response


class Service:
    """The handlers of the API."""

    def __init__(self, config: ServiceConfig, keys: Keys, cluster: Kubernetes) -> None:
        self._config, self._keys = config, keys
        self._files = Files(config)
        self._batches = Batches(config, self._files, cluster)
        self._uploads = asyncio.Semaphore(UPLOADS)

    def application(self) -> web.Application:
        """Return the application."""
        found = web.Application(middlewares=[_with_errors, self._authenticated])
        found.add_routes(
            [
                web.get("/healthz", self._health),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{id:.+}", self._model),
                web.post("/v1/files", self._upload),
                web.get("/v1/files", self._list_files),
                web.get("/v1/files/{id}", self._file),
                web.delete("/v1/files/{id}", self._delete_file),
                web.get("/v1/files/{id}/content", self._content),
                web.post("/v1/batches", self._create_batch),
                web.get("/v1/batches", self._list_batches),
                web.get("/v1/batches/{id}", self._batch),
                web.post("/v1/batches/{id}/cancel", self._cancel_batch),
            ]
        )
        return found

    @web.middleware
    async def _authenticated(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.path != "/healthz":
            sent = request.headers.getall("Authorization", [])
            request[NAMESPACE] = self._keys.namespace_of(sent[0] if len(sent) == 1 else "")
        response = await handler(request)
        if not response.prepared:
            response.headers["x-request-id"] = uuid.uuid4().hex
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _models(self, request: web.Request) -> web.Response:
        models = self._config.models_of(request[NAMESPACE])
        return _listed([_model_json(name) for name in models], more=False)

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if name not in self._config.models_of(request[NAMESPACE]):
            raise not_found("Model", name)
        return web.json_response(_model_json(name))

    async def _upload(self, request: web.Request) -> web.Response:
        if request.content_type != "multipart/form-data":
            raise bad_request("Send the file as multipart/form-data")
        async with self._uploads:
            form = _Form(request)
            file = await form.next_file()
            content = form.content(file)
            stored = await self._files.add(request[NAMESPACE], file.filename or "", content)
        return web.json_response(stored.as_json())

    async def _list_files(self, request: web.Request) -> web.Response:
        namespace, query = request[NAMESPACE], request.query
        names = await self._files.list(namespace, query.get("purpose"))
        if query.get("order", "desc") != "asc":
            names.reverse()
        limit, found = _limit(request, MAX_PAGE), []
        names, _ = page_of(names, query.get("after"), len(names))
        while names and len(found) < limit:
            page, names = names[: limit - len(found)], names[limit - len(found) :]
            files = await asyncio.gather(*(self._file_or_none(namespace, one) for one in page))
            found += [each for each in files if each]
        return _listed(found, more=bool(names))

    async def _file_or_none(self, namespace: str, identifier: str) -> dict[str, Any] | None:
        try:
            return (await self._files.get(namespace, identifier)).as_json()
        except ApiError:
            return None

    async def _file(self, request: web.Request) -> web.Response:
        found = await self._files.get(request[NAMESPACE], request.match_info["id"])
        return web.json_response(found.as_json())

    async def _delete_file(self, request: web.Request) -> web.Response:
        identifier = request.match_info["id"]
        await self._files.delete(request[NAMESPACE], identifier)
        return web.json_response({"id": identifier, "object": "file", "deleted": True})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        file = await self._files.get(request[NAMESPACE], request.match_info["id"])
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        response.content_length = file.bytes
        await response.prepare(request)
        request[SENDING] = True
        async for chunk in self._files.content(file):
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _create_batch(self, request: web.Request) -> web.Response:
        headers = request.headers
        repeated = headers.get("x-stainless-retry-count", "0") != "0"
        key = headers.get("Idempotency-Key", "")
        body = await request.read()
        return web.json_response(
            await self._batches.create(request[NAMESPACE], body, key, repeated=repeated)
        )

    async def _list_batches(self, request: web.Request) -> web.Response:
        after = request.query.get("after")
        found, more = await self._batches.list(request[NAMESPACE], after, _limit(request, 20))
        return _listed(found, more=more)

    async def _batch(self, request: web.Request) -> web.Response:
        found = await self._batches.get(request[NAMESPACE], request.match_info["id"])
        return web.json_response(found)

    async def _cancel_batch(self, request: web.Request) -> web.Response:
        found = await self._batches.cancel(request[NAMESPACE], request.match_info["id"])
        return web.json_response(found)


class _Form:
    """The form with an uploaded file: a field `purpose`, before or after the file."""

    def __init__(self, request: web.Request) -> None:
        self._request, self._purpose = request, ""
        self._fields = 0
        self._start, self._received = asyncio.get_running_loop().time(), 0

    async def next_file(self) -> BodyPartReader:
        """Read fields up to the file, and return it. Raises ApiError."""
        self._reader = await self._request.multipart()
        file = await self._next_file()
        if file is None:
            raise bad_request("file: the form has no file", "file")
        return file

    async def _next_file(self) -> BodyPartReader | None:
        while (part := await self._timed(self._reader.next())) is not None:
            self._fields += 1
            if not isinstance(part, BodyPartReader) or self._fields > MAX_FIELDS:
                raise bad_request("The form has too many parts, or parts of parts")
            if part.name == "file":
                return part
            await self._read_field(part)
        return None

    async def _read_field(self, part: BodyPartReader) -> None:
        value = b""
        while chunk := await self._timed(part.read_chunk(MAX_FIELD)):
            value += chunk
            if len(value) > MAX_FIELD:
                raise bad_request("A field of the form is too long", part.name)
        if part.name != "purpose":
            raise bad_request(f"{part.name}: not supported. Remove it", part.name)
        self._purpose = value.decode(errors="replace")

    async def content(self, file: BodyPartReader) -> AsyncIterator[bytes]:
        """Yield the content of the file. Raises ApiError at its end for an invalid purpose."""
        while chunk := await self._timed(file.read_chunk(CHUNK)):
            self._received += len(chunk)
            yield chunk
        if await self._next_file() is not None:
            raise bad_request("file: the form has two files", "file")
        if self._purpose != "batch":
            raise bad_request("purpose: expected batch", "purpose")

    async def _timed(self, reading: Awaitable[Any]) -> Any:
        """Return what is read. Raises TimeoutError if the client sends too slowly."""
        allowed = GRACE_SECONDS + self._received / MIN_BYTES_PER_SECOND
        async with asyncio.timeout_at(self._start + allowed):
            return await reading


def _model_json(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "batchinference"}


def _limit(request: web.Request, default: int) -> int:
    """Return the size of a page, at most MAX_PAGE: the answer says that there are more."""
    text = request.query.get("limit", str(default))
    if not text.isascii() or not text.isdecimal() or len(text) > 6 or int(text) < 1:
        raise bad_request("limit: expected a number of 1 or more", "limit")
    return min(int(text), MAX_PAGE)


def _listed(items: list[dict[str, Any]], *, more: bool) -> web.Response:
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    answer = {"object": "list", "data": items, "first_id": first, "last_id": last}
    return web.json_response({**answer, "has_more": more})
