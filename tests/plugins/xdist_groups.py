"""Keeps tests that share an expensive fixture on one worker of pytest-xdist.

A module's own `xdist_group` mark takes precedence.
"""

from __future__ import annotations

import gc

import pytest
from _pytest.nodeid import coerce_node_id

GROUPS = {"one_ray": "ray", "server": "apiserver", "s3": "s3"}
"""The group of the tests that use a fixture. The first match counts."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        fixtures = getattr(item, "fixturenames", ())
        group = next((group for name, group in GROUPS.items() if name in fixtures), None)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Make xdist 3.8 group tests under pytest 9.2, and keep the collected tests, a million objects,
    out of each later garbage collection.

    xdist adds the group to `_nodeid`, which pytest 9.2 does not read any more.
    """
    for item in session.items:
        if grouped := getattr(item, "_nodeid", None):
            item._id = coerce_node_id(grouped)
    gc.collect()
    gc.freeze()
