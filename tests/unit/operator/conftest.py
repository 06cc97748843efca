"""What several tests of the operator use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from support.servers.scripted_http import Answer, Serve, Server, served


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts servers that end with the test."""
    async with AsyncExitStack() as stack:

        async def start(answer: Answer) -> Server:
            return await stack.enter_async_context(served(answer))

        yield start
