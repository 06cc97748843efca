"""Notifications with the rights that the chart gives the operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from batchinference.spec.notifications import SECRET
from batchinference_operator.status.conditions import NOTIFIED
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import SimulatedJob, soon
from support.servers.api_server import Namespace
from support.servers.scripted_http import Server, serving

HOOKS = [{"name": "chat", "urlEnv": "CHAT"}]


@pytest.fixture
def receiver() -> Iterator[Server]:
    """Start a server that refuses its first request."""
    statuses = iter([503])

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=next(statuses, 200))

    with serving(answer) as server:
        yield server


@pytest.fixture
def operator(new_operator: Any, namespace: Namespace, receiver: Server) -> OperatorProcess:
    """Start an operator that may send to the receiver."""
    policy = {"notifications": [f"{receiver.url}/hook/"]}
    made: OperatorProcess = new_operator(watchNamespaces=[namespace.name], policy=policy)
    made.start()
    return made


def notified(job: SimulatedJob) -> Any:
    """Return the condition Notified of a job once it has one."""

    def condition() -> Any:
        conditions = job.body.get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == NOTIFIED), None)

    return soon("it is notified", condition)


def put_secret(namespace: Namespace, url: str) -> None:
    meta = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}}
    namespace.create({**meta, "stringData": {"CHAT": url}})


def test_end_is_sent_until_it_arrives_also_by_an_operator_that_restarts(
    operator: OperatorProcess, namespace: Namespace, receiver: Server, job: Any
) -> None:
    put_secret(namespace, f"{receiver.url}/hook/token")
    made = job(notifications=HOOKS)
    made.succeed()
    made.status("Succeeded")
    operator.kill()
    operator.start()
    assert notified(made)["status"] == "True"
    assert len(receiver.requests) >= 2
    assert len({one.headers["Idempotency-Key"] for one in receiver.requests}) == 1
    assert receiver.requests[-1].body["data"]["written"] == 10
    assert "token" not in operator.output()


def test_url_that_the_platform_does_not_list_gets_no_request(
    operator: OperatorProcess, namespace: Namespace, receiver: Server, job: Any
) -> None:
    put_secret(namespace, f"{receiver.url}/token")
    made = job(notifications=HOOKS)
    made.succeed()
    condition = notified(made)
    assert (condition["status"], condition["reason"]) == ("False", "NotificationFailed")
    assert "token" not in condition["message"]
    assert receiver.requests == []
    made.status("Succeeded")
    events = soon("an Event", lambda: [one for one in namespace.list("Event")
                                       if one["reason"] == "NotificationFailed"])  # fmt: skip
    assert events[0]["type"] == "Warning"
