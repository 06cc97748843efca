"""The health of the operator while the API server answers or hangs."""

from __future__ import annotations

from typing import Any

import pytest

from support.cluster.kubectl import eventually
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import soon
from support.servers.api_server import ApiServer, Namespace

WATCH_SECONDS = 3
"""Duration of a watch before it is restarted."""


@pytest.fixture
def quick_operator(new_operator: Any, namespace: Namespace) -> OperatorProcess:
    """Return an operator whose watches restart every few seconds."""
    operator: OperatorProcess = new_operator(
        watchNamespaces=[namespace.name],
        extraEnv=[{"name": "BATCHINFERENCE_OPERATOR_WATCH_SECONDS", "value": str(WATCH_SECONDS)}],
    )
    operator.start()
    return operator


def watches(server: ApiServer, operator: OperatorProcess) -> int:
    """Return how often the operator has watched jobs."""
    return sum(
        event["verb"] == "watch" and event["objectRef"]["resource"] == "batchinferences"
        for event in server.requests_of(operator.user)
    )


def test_leader_is_restarted_while_the_api_server_hangs(
    quick_operator: OperatorProcess, server: ApiServer, job: Any
) -> None:
    soon("it is ready", lambda: quick_operator.answers("/readyz") == 200)
    eventually("idle watches begin again", lambda: watches(server, quick_operator) >= 3, 60, 0.5)
    assert quick_operator.answers("/healthz") == 200
    with quick_operator.restarted():
        with server.stopped():
            lost = "no longer the leader: the Lease was not renewed"
            eventually("it has ended", lambda: lost in quick_operator.output(), 60, 0.2)
        soon("it is ready again", lambda: quick_operator.answers("/readyz") == 200)
        simulated = job()
        simulated.succeed()
        simulated.status("Succeeded")
    assert quick_operator.stop() == 0
