"""Whether the watches live.

The API server ends each watch after `seconds`, and kopf begins it anew; so a watch of which nothing
was heard for three times as long is dead, whatever its connection looks like. That takes no request
of its own but the watches' own beginnings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf

from batchinference.spec.job import GROUP, PLURAL, VERSION
from batchinference_operator.runtime.metrics import Metrics, described

KINDS = (f"/apis/{GROUP}/{VERSION}", PLURAL), ("/apis/ray.io/v1", "rayjobs"), ("/api/v1", "pods")
PATIENCE = 3
"""Turns of a watch that may go by in silence."""


class Watches:
    """When each watch was heard last. A watch counts as heard when the server takes it up, and when
    it answers a page of the list that precedes it."""

    def __init__(
        self,
        namespaces: Sequence[str],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        scopes = [f"/namespaces/{namespace}" for namespace in namespaces] or [""]
        self._begun = {
            f"{root}{scope}/{plural}": False for root, plural in KINDS for scope in scopes
        }
        self._heard = dict.fromkeys(self._begun, clock())
        self._limit = PATIENCE * seconds
        self._clock = clock

    def heard(self, path: str, *, watch: bool) -> None:
        """The server has answered a list or a watch."""
        if path in self._begun:
            self._heard[path] = self._clock()
            self._begun[path] |= watch

    @property
    def missing(self) -> list[str]:
        """Watches that have not begun yet, because their first list is not complete."""
        return [path for path, begun in self._begun.items() if not begun]

    @property
    def dead(self) -> list[str]:
        """Watches of which nothing was heard for too long."""
        return [path for path, silent in self.silence().items() if silent > self._limit]

    def silence(self) -> dict[str, float]:
        """Seconds since each watch was heard."""
        now = self._clock()
        return {path: now - heard for path, heard in self._heard.items()}


class Login:
    """Logs kopf in with the credentials of the pod or a kubeconfig, over connections that tell
    what is asked and answered."""

    def __init__(self, watches: Watches, metrics: Metrics) -> None:
        self._trace = _trace(watches, metrics)
        # the same credentials are the same session, so that kopf knows refused ones again
        self._session = lru_cache(maxsize=1)(self._new_session)

    async def login(self, **handed: Any) -> kopf.AiohttpSession | None:
        info = kopf.login_with_service_account(**handed) or kopf.login_with_kubeconfig(**handed)
        return None if info is None else self._session(info)

    def _new_session(self, info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            trust_env=info.trust_env,
            trace_configs=[self._trace],
        )
        return kopf.AiohttpSession(
            aiohttp_session=session,
            server=info.server,
            default_namespace=info.default_namespace,
            priority=info.priority,
            expiration=info.expiration,
        )


def _trace(watches: Watches, metrics: Metrics) -> aiohttp.TraceConfig:
    async def begun(_: Any, context: SimpleNamespace, __: Any) -> None:
        context.since = time.monotonic()

    async def answered(
        _: Any, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
    ) -> None:
        seconds = time.monotonic() - context.since
        metrics.asked(params.method, params.url.path_qs, params.response.status, seconds)
        if params.response.ok:
            verb, _resource = described(params.method, params.url.path_qs)
            watches.heard(params.url.path, watch=verb == "watch")

    async def failed(
        _: Any, context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
    ) -> None:
        seconds = time.monotonic() - context.since
        metrics.asked(params.method, params.url.path_qs, None, seconds)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(begun)
    trace.on_request_end.append(answered)
    trace.on_request_exception.append(failed)
    return trace
