"""Divides the tests among the workers of pytest-xdist.

Tests that share an expensive fixture run in one worker, and so do the tests of a module, whose
fixtures and imports would otherwise cost time in each worker. The groups that take the longest
start first. A module's own `xdist_group` mark takes precedence.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Generator

import pytest

from support.tiers import in_long_tier

GROUPS = {
    **{"one_ray": "ray", "server": "apiserver", "chart": "chart", "s3": "s3"},
    **dict.fromkeys(("bert", "minilm", "resnet", "tiny", "vit"), "models"),
}
"""The xdist group of the tests that use each fixture. The first match wins."""
FIRST = ("ray", "apiserver", "crashes", "chart", "models", "docs", "s3", "fuzz", "transcript")
"""The groups that take the longest, in the order in which they start."""


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of cores plus one: tests with Ray or an API server often wait."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of the groups. pytest-xdist would start those with the most tests first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.get_closest_marker("xdist_group") and (group := _group(item)):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_place)


def _group(item: pytest.Item) -> str:
    fixtures = getattr(item, "fixturenames", ())
    shared = (group for name, group in GROUPS.items() if name in fixtures)
    # each test on a cluster and each test of the long tier takes minutes
    alone = in_long_tier() or item.location[0].startswith("tests/e2e/")
    return next(shared, "" if alone else re.sub(r"\W+", "-", item.location[0].removesuffix(".py")))


def _place(item: pytest.Item) -> int:
    mark = item.get_closest_marker("xdist_group")
    group = mark.args[0] if mark else ""
    return FIRST.index(group) if group in FIRST else len(FIRST)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, which would take a sixth of the time. Exclude
    the collected tests, about a million objects, from all garbage collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
