"""Assigns tests that share an expensive fixture to one worker of pytest-xdist.

A module's own `xdist_group` mark takes precedence.
"""

from __future__ import annotations

import gc
import os

import pytest

GROUPS = {"one_ray": "ray", "server": "apiserver", "s3": "s3"}
"""The group of the tests that use a fixture. The first match counts."""


def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than cores: tests with Ray and with an API server often wait."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        fixtures = getattr(item, "fixturenames", ())
        group = next((group for name, group in GROUPS.items() if name in fixtures), None)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """Keep the collected tests, a million objects, out of each later garbage collection."""
    gc.collect()
    gc.freeze()
