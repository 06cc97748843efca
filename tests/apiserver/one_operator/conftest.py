"""The operator that all tests of this package share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apiserver.operators import Operators
from support.cluster.chart import Chart
from support.operator.process import OperatorProcess
from support.servers.api_server import ApiServer
from support.servers.dashboard import Dashboard


@pytest.fixture(scope="package")
def shared_operator(
    server: ApiServer,
    kuberay: None,
    chart: Chart,
    dashboard: Dashboard,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatorProcess]:
    """Start an operator that watches all namespaces. Each test uses its own namespace."""
    operators = Operators(server, chart, dashboard, tmp_path_factory.mktemp("operator"))
    operator = operators()
    operator.start()
    yield operator
    operators.close()
