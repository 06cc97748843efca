"""Serves the HTTP endpoints `/healthz`, `/readyz` and `/metrics`."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import hdrs, web
from prometheus_client.exposition import choose_encoder

from batchinference_operator.kube.leader_election import Leadership
from batchinference_operator.kube.watch_health import WatchHealth
from batchinference_operator.observability.metrics import Metrics


def _application(leadership: Leadership, watches: WatchHealth, metrics: Metrics) -> web.Application:
    """Return the endpoints. A standby replica has no watches. A standby replica is ready if the
    leader is of its own release."""

    async def healthz(_: web.Request) -> web.Response:
        dead = watches.dead if leadership.is_leader else []
        problem = "the watch of {} has had no response for too long"
        return _health_response(map(problem.format, dead))

    async def readyz(_: web.Request) -> web.Response:
        if not leadership.is_leader:
            return _health_response(filter(None, [leadership.unready]))
        return _health_response(map("the first list is not complete: {}".format, watches.missing))

    async def serve_metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get(hdrs.ACCEPT, ""))
        body = encode(metrics.registry)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/metrics", serve_metrics)
    return application


@asynccontextmanager
async def serve_http(
    port: int, leadership: Leadership, watches: WatchHealth, metrics: Metrics
) -> AsyncIterator[None]:
    """Serve the endpoints on all addresses while the block runs."""
    application = _application(leadership, watches, metrics)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        yield
    finally:
        await runner.cleanup()


def _health_response(problems: Iterable[str]) -> web.Response:
    lines = "".join(f"{problem}\n" for problem in problems)
    if not lines:
        return web.Response(text="ok\n")
    return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=lines)
