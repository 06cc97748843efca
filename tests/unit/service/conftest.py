"""A batch service with a store in a directory and a cluster in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.service.cluster import FakeCluster
from support.service.running import Running, running


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, FakeCluster()) as result:
        yield result
