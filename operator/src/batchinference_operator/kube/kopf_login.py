"""Logs kopf in to the API server, and observes its lists and watches."""

from __future__ import annotations

import asyncio
import time
from functools import lru_cache, partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf

from batchinference_operator.kube.http import USER_AGENT, OnRequest
from batchinference_operator.kube.limited_response import LimitedResponse
from batchinference_operator.kube.watch_health import WatchHealth

REFUSED_SECONDS = 20.0
"""Delay after a refused list or watch; shorter than kopf's request timeout."""


class KopfLogin:
    """Logs kopf in with the credentials of the pod or a kubeconfig.

    The session reports kopf's requests and their answers to `watches` and `on_request`.
    """

    def __init__(self, watches: WatchHealth, on_request: OnRequest) -> None:
        self._trace = _trace(watches, on_request)
        self._hold = partial(_hold_refused, watches)
        # the same credentials return the same session, so that kopf recognizes refused ones
        self._session = lru_cache(maxsize=1)(self._new_session)

    async def login(self, **handed: Any) -> kopf.AiohttpSession | None:
        info = kopf.login_with_service_account(**handed) or kopf.login_with_kubeconfig(**handed)
        return None if info is None else self._session(info)

    def _new_session(self, info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers={**info.as_http_headers(), "User-Agent": USER_AGENT},
            proxy=info.proxy_url,
            trust_env=info.trust_env,
            trace_configs=[self._trace],
            middlewares=(self._hold,),
            response_class=LimitedResponse,
        )
        return kopf.AiohttpSession(
            aiohttp_session=session,
            server=info.server,
            default_namespace=info.default_namespace,
            priority=info.priority,
            expiration=info.expiration,
        )


class WatchRefused(aiohttp.ClientConnectionError):
    """The API server refused a list or a watch.

    It is a connection error, because kopf retries after those forever. After a refusal, kopf would
    stop all watches and the operator.
    """


async def _hold_refused(
    watches: WatchHealth, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Send a request. If it is a refused list or watch, wait and raise WatchRefused."""
    response = await send(request)
    refused = response.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
    if not refused or not watches.record_refusal(request.url.path, response.status):
        return response
    response.release()
    await asyncio.sleep(REFUSED_SECONDS)
    raise WatchRefused(f"{request.url.path}: {response.status}")


def _trace(watches: WatchHealth, on_request: OnRequest) -> aiohttp.TraceConfig:
    async def started(_: Any, context: SimpleNamespace, __: Any) -> None:
        context.since = time.monotonic()

    async def answered(
        _: Any, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
    ) -> None:
        seconds = time.monotonic() - context.since
        on_request(params.method, params.url.path_qs, params.response.status, seconds)
        if params.response.ok:
            watches.record_answer(params.url.path, watch=params.url.query.get("watch") == "true")

    async def failed(
        _: Any, context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
    ) -> None:
        seconds = time.monotonic() - context.since
        on_request(params.method, params.url.path_qs, None, seconds)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(started)
    trace.on_request_end.append(answered)
    trace.on_request_exception.append(failed)
    return trace
