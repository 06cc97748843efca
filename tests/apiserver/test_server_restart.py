"""The API server dies and comes back: the operator goes on, and its watches with it."""

from __future__ import annotations

from collections.abc import Callable

from support.apiserver import ApiServer, Namespace
from support.kubectl import eventually
from support.operator_process import OperatorProcess
from support.played import PlayedJob


def test_jobs_go_on_in_every_phase(
    server: ApiServer,
    operator: OperatorProcess,
    namespace: Namespace,
    job: Callable[..., PlayedJob],
) -> None:
    starting, running, ended = job("starting"), job("running"), job("ended")
    starting.status("Starting")
    running.play_cluster()
    running.play_driver()
    running.report("running", progress={"rows": 4})
    running.status("Running")
    ended.play_success()
    ended.status("Succeeded")
    made = {body["metadata"]["uid"] for body in namespace.list("RayJob")}
    server.kill()
    server.start()
    running.report("succeeded", counts={"read": 9, "written": 9, "failed": 0, "skipped": 0})
    running.status("Succeeded")
    starting.play_success()
    starting.status("Succeeded")
    assert {body["metadata"]["uid"] for body in namespace.list("RayJob")} == made
    late = job("late")
    late.play_success()
    late.status("Succeeded")
    eventually("the operator is healthy", lambda: operator.answers("/healthz") == 200, 60)


def test_nothing_of_an_outage_is_an_error_of_a_job(
    server: ApiServer, operator: OperatorProcess, job: Callable[..., PlayedJob]
) -> None:
    running = job("steady")
    running.play_cluster()
    running.play_driver()
    running.report("running", progress={"rows": 4})
    running.status("Running")
    server.kill()
    running.report("running", progress={"rows": 6})
    eventually("a call has failed", lambda: "trying again" in operator.output(), 60)
    server.start()
    running.report("succeeded", counts={"read": 9, "written": 9, "failed": 0, "skipped": 0})
    assert running.status("Succeeded")["failedAttempts"] == 0
