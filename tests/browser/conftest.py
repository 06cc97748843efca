"""Fixtures of the tests in a real browser: Chromium, and the accessibility checker axe-core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.browser import AXE, chromium
from support.engines import missing


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as result:
        yield result


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the source of axe-core."""
    if not AXE.exists():
        missing("axe-core", "run `make browser`")
    return AXE.read_text(encoding="utf-8")
