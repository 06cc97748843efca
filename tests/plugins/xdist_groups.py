"""Assigns tests that share an expensive fixture to one worker of pytest-xdist.

A module's own `xdist_group` mark takes precedence.
"""

from __future__ import annotations

import gc
import os

import pytest

GROUPS = {
    **{"one_ray": "ray", "server": "apiserver", "one_bare_server": "apiserver", "s3": "s3"},
    **dict.fromkeys(("bert", "minilm", "resnet", "tiny", "vit"), "models"),
}
"""The xdist group of the tests that use each fixture. The first match wins."""


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of cores plus one: tests with Ray or an API server often wait."""
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
    """Exclude the collected tests, about a million objects, from later garbage collections."""
    gc.collect()
    gc.freeze()
