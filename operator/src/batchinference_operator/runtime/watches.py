"""Detects dead and refused watches.

The API server ends each watch after `seconds`, and kopf starts it again. So a watch without an
answer for three times as long is dead, whatever the state of its connection. The check needs no
requests of its own: it observes those that start the watches.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf

from batchinference.spec.job import GROUP, PLURAL, VERSION
from batchinference_operator.runtime.exchange import USER_AGENT
from batchinference_operator.runtime.metrics import Metrics, described

KINDS = (f"/apis/{GROUP}/{VERSION}", PLURAL), ("/apis/ray.io/v1", "rayjobs"), ("/api/v1", "pods")
REFUSED_SECONDS = 20.0
"""Delay after a refused list or watch; shorter than kopf's request timeout."""
logger = logging.getLogger("batchinference.operator")
PATIENCE = 3
"""Number of watch periods without an answer after which a watch is dead."""


class Watches:
    """Records when each watch was last answered.

    A watch counts as answered when the server accepts it, and when the server returns a page of the
    list that precedes it.
    """

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
        self._namespaces = frozenset(namespaces)
        self._refused: set[str] = set()

    def heard(self, path: str, *, watch: bool) -> None:
        """Record that the server answered a list or a watch."""
        if path in self._begun:
            self._heard[path] = self._clock()
            self._begun[path] |= watch
            if path in self._refused:
                self._refused.discard(path)
                logger.info("%s is watched again", path)

    def refuse(self, path: str, status: int) -> bool:
        """Record a refused list or watch; return False if the path is that of no watch here."""
        if path not in self._begun:
            return False
        if path not in self._refused:
            self._refused.add(path)
            words = "jobs there are left alone until it is allowed again"
            logger.warning("%s cannot be watched (%s): %s", path, status, words)
        return True

    @property
    def lost(self) -> set[str]:
        """Namespaces in which at least one kind cannot be watched.

        Empty if those are all namespaces: then the operator's own permissions are wrong, and the
        operator must be restarted.
        """
        found = {name for name in self._namespaces if any(
            f"/namespaces/{name}/" in path for path in self._refused)}  # fmt: skip
        return found if found != self._namespaces else set()

    @property
    def missing(self) -> list[str]:
        """Watches that have not started yet, because their first list is not complete."""
        return self._of_others([path for path, begun in self._begun.items() if not begun])

    @property
    def dead(self) -> list[str]:
        """Watches without an answer for too long."""
        return self._of_others(
            [path for path, silent in self.silence().items() if silent > self._limit]
        )

    def _of_others(self, paths: list[str]) -> list[str]:
        """Return the paths outside of lost namespaces, which must not affect the others."""
        lost = [f"/namespaces/{name}/" for name in self.lost]
        return [path for path in paths if not any(scope in path for scope in lost)]

    def silence(self) -> dict[str, float]:
        """Return the seconds since each watch was last answered."""
        now = self._clock()
        return {path: now - heard for path, heard in self._heard.items()}


class Login:
    """Logs kopf in with the credentials of the pod or a kubeconfig.

    The session reports kopf's requests and their answers to the Watches and the Metrics.
    """

    def __init__(self, watches: Watches, metrics: Metrics) -> None:
        self._trace = _trace(watches, metrics)
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
    watches: Watches, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Send a request. If it is a refused list or watch, wait and raise WatchRefused."""
    response = await send(request)
    refused = response.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
    if not refused or not watches.refuse(request.url.path, response.status):
        return response
    response.release()
    await asyncio.sleep(REFUSED_SECONDS)
    raise WatchRefused(f"{request.url.path}: {response.status}")


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
