"""Plugins and fixtures that all suites share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.servers.api_server import ApiServer

pytest_plugins = [
    "plugins.tiers",
    "plugins.xdist_groups",
    "plugins.skips",
    "plugins.outcomes",
    "plugins.interrupts",
    "plugins.timing",
]


@pytest.fixture(scope="session")
def shared_bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Run an API server for `bare_server`."""
    from support.engines import kubebuilder_assets
    from support.servers.api_server import running

    with running(kubebuilder_assets(), tmp_path_factory.mktemp("bare")) as server:
        yield server


@pytest.fixture
def bare_server(shared_bare_server: ApiServer) -> Iterator[ApiServer]:
    """Yield an API server without any definition. Delete those that the test installs."""
    from support.cluster.kubectl import eventually

    yield shared_bare_server
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    shared_bare_server.call("DELETE", definitions)
    eventually("no definitions", lambda: not shared_bare_server.get(definitions)["items"], 30, 0.05)
