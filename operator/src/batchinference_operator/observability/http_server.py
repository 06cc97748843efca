"""Serves the HTTP endpoints `/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import hdrs, web
from prometheus_client.exposition import choose_encoder

from batchinference_operator.kube.leader_election import Leadership
from batchinference_operator.kube.reflector import WatchHealth
from batchinference_operator.observability.metrics import Metrics


@dataclass(frozen=True)
class _Endpoints:
    """The handlers of the endpoints.

    A standby replica has no watches. It is ready if a replica of its own release is the leader.
    """

    leadership: Leadership
    watches: WatchHealth
    metrics: Metrics

    async def healthz(self, _: web.Request) -> web.Response:
        dead = self.watches.dead if self.leadership.is_leader else []
        return _health_response(
            [f"the watch of {path} has had no response for too long" for path in dead]
        )

    async def readyz(self, _: web.Request) -> web.Response:
        if not self.leadership.is_leader:
            unready = self.leadership.unready
            return _health_response([unready] if unready else [])
        return _health_response(
            [f"the first list is not complete: {path}" for path in self.watches.missing]
        )

    async def serve_metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get(hdrs.ACCEPT, ""))
        body = encode(self.metrics.registry)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})


@asynccontextmanager
async def serve_http(
    port: int, leadership: Leadership, watches: WatchHealth, metrics: Metrics
) -> AsyncIterator[None]:
    """Serve the endpoints on all addresses while the block runs."""
    handlers = _Endpoints(leadership, watches, metrics)
    application = web.Application()
    application.router.add_get("/healthz", handlers.healthz)
    application.router.add_get("/readyz", handlers.readyz)
    application.router.add_get("/metrics", handlers.serve_metrics)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        yield
    finally:
        await runner.cleanup()


def _health_response(problems: Sequence[str]) -> web.Response:
    if not problems:
        return web.Response(text="ok\n")
    lines = "".join(f"{problem}\n" for problem in problems)
    return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=lines)
