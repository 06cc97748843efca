"""Jobs survive a restart of the API server. A longer one ends the leader, which is restarted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.cluster.kubectl import eventually
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import SimulatedJob
from support.servers.api_server import ApiServer, Namespace


def has_failed_call(output: str) -> bool:
    """Return whether the log has a failed call, of the leader or of its replacement."""
    return "retrying in" in output or "the Lease cannot be read" in output


@pytest.mark.long("model-check")
def test_jobs_of_every_phase_survive_an_api_server_restart(
    server: ApiServer,
    operator: OperatorProcess,
    namespace: Namespace,
    job: Callable[..., SimulatedJob],
) -> None:
    starting, running, ended = job("starting"), job("running"), job("ended")
    starting.status("Starting")
    running.start_cluster()
    running.start_driver()
    running.report("running", progress={"rows": 4})
    running.status("Running")
    ended.succeed()
    ended.status("Succeeded")
    made = {body["metadata"]["uid"] for body in namespace.list("RayJob")}
    with operator.restarted():
        server.kill()
        running.report("running", progress={"rows": 6})  # its status cannot be written
        eventually("a call has failed", lambda: has_failed_call(operator.output()), 60)
        server.start()
        running.report("succeeded", counts={"read": 9, "written": 9, "failed": 0, "filtered": 0})
        assert running.status("Succeeded")["failedAttempts"] == 0
        starting.succeed()
        starting.status("Succeeded")
        assert {body["metadata"]["uid"] for body in namespace.list("RayJob")} == made
        late = job("late")
        late.succeed()
        late.status("Succeeded")
        eventually("the operator is healthy", lambda: operator.answers("/healthz") == 200, 60)
