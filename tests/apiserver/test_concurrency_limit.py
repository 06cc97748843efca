"""The limit of concurrent jobs. No other operator may watch the namespace."""

from __future__ import annotations

from typing import Any

from support.servers.api_server import Namespace


def test_concurrency_limit_queues_jobs_by_priority_despite_a_restart(
    new_operator: Any, namespace: Namespace, job: Any
) -> None:
    jobs = [job("first"), job("second", priority=-1), job("third", priority=7)]
    operator = new_operator(
        watchNamespaces=[namespace.name], concurrency={"maxRunningPerNamespace": 1}
    )
    operator.start()
    third = jobs[2]
    third.status("Starting")
    jobs[0].status("Pending", "AdmissionPending")
    jobs[1].status("Pending", "AdmissionPending")
    operator.kill()
    operator.start()
    third.succeed()
    third.status("Succeeded")
    jobs[0].status("Starting")
    live = [body for body in namespace.list("RayJob") if body["metadata"]["name"] != "third-1"]
    assert [body["metadata"]["name"] for body in live] == ["first-1"]
    namespace.patch("BatchInference", "first", {"spec": {"suspend": True}})
    jobs[1].status("Starting")
    jobs[0].status("Suspended")
