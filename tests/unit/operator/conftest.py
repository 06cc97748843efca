"""Fixtures for the tests of the operator: an operator in memory, and scripted servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from kopf import ConnectionInfo

from batchinference_operator.kube.api_session import open_session
from batchinference_operator.kube.kube_client import KubeClient
from support.operator.harness import Harness
from support.operator.reconcile_loop import ReconcileLoop
from support.servers.scripted_http import Answer, Serve, Server, served


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def loop() -> ReconcileLoop:
    """Return the reconcile loop of a new job."""
    return ReconcileLoop()


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Yield a function that starts servers. They stop at the end of the test."""
    async with AsyncExitStack() as stack:

        async def start(answer: Answer) -> Server:
            return await stack.enter_async_context(served(answer))

        yield start


@pytest.fixture
async def connect(
    serve: Serve,
) -> AsyncIterator[Callable[[Answer], Awaitable[tuple[KubeClient, Server]]]]:
    """Yield a function that starts a server and a client that retries without a backoff."""
    async with AsyncExitStack() as stack:

        async def start(answer: Answer) -> tuple[KubeClient, Server]:
            server = await serve(answer)
            session = open_session(ConnectionInfo(server=server.url, token="the-operators-own"))
            await stack.enter_async_context(session.aiohttp_session)
            return KubeClient(session, retry_delays=(0.0, 0.0)), server

        yield start
