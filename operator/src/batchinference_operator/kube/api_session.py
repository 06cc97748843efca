"""The credentials of the operator, and sessions with the API server."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf

from batchinference.rendering import MANAGER
from batchinference.version import __version__

USER_AGENT = f"{MANAGER}/{__version__}"
"""The user agent, which audit logs show. The API server derives the field manager from it."""
OnRequest = Callable[[str, str, int | None, float], None]
"""Called after each request with method, path, status code (None without a response), seconds."""
TOKEN_SECONDS = 60.0
"""Seconds for which a token is used before its file is read again. Kubernetes replaces the file
about once an hour."""


def find_credentials(**options: Any) -> kopf.ConnectionInfo | None:
    """Return the credentials of the pod or of a kubeconfig; None if there are none. `options` are
    the arguments of a login handler of kopf."""
    if (info := kopf.login_with_service_account(**options)) is None:
        return kopf.login_with_kubeconfig(**options)
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    host = f"[{host}]" if ":" in host else host
    return replace(info, server=f"https://{host}:{port}") if host and port else info


class _CurrentToken:
    """Adds the current token of the pod to each request."""

    def __init__(self, seconds: float) -> None:
        self._headers: dict[str, str] = {}
        self._seconds, self._read_at = seconds, float("-inf")

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if time.monotonic() - self._read_at > self._seconds:
            info = kopf.login_with_service_account(settings=kopf.OperatorSettings())
            self._headers, self._read_at = info.as_http_headers() if info else {}, time.monotonic()
        request.headers.update(self._headers)
        return await handler(request)


def open_session(
    info: kopf.ConnectionInfo,
    on_request: OnRequest = lambda *_: None,
    *,
    token_seconds: float = TOKEN_SECONDS,
    response_class: type[aiohttp.ClientResponse] = aiohttp.ClientResponse,
) -> kopf.AiohttpSession:
    """Return a session with the API server. Its requests are reported to `on_request`."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers={**info.as_http_headers(), "User-Agent": USER_AGENT},
        proxy=info.proxy_url,
        trust_env=info.trust_env,
        middlewares=[_CurrentToken(token_seconds)],
        trace_configs=[_trace(on_request)],
        response_class=response_class,
    )
    return kopf.AiohttpSession(aiohttp_session=session, server=info.server.rstrip("/"))


def _trace(on_request: OnRequest) -> aiohttp.TraceConfig:
    """Return a trace that reports each request when the response begins or the request fails."""

    async def started(_: Any, context: SimpleNamespace, __: Any) -> None:
        context.since = time.monotonic()

    async def ended(_: Any, context: SimpleNamespace, params: Any) -> None:
        status = params.response.status if hasattr(params, "response") else None
        seconds = time.monotonic() - context.since
        on_request(params.method, params.url.path_qs, status, seconds)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(started)
    trace.on_request_end.append(ended)
    trace.on_request_exception.append(ended)
    return trace
