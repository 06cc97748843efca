"""Jobs in a queue of Kueue, which the test simulates, on a real API server."""

from __future__ import annotations

from typing import Any

from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import SimulatedJob

QUEUE = {"queueName": "gpu", "queuePriorityClassName": "nightly"}
PLACE = {"nodeSelector": {"flavor": "spot"}}


def decide(simulated: SimulatedJob, suspend: bool) -> None:
    """Suspend or admit a RayJob as Kueue does: set whether it may run, and on which nodes."""
    group = simulated.ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]
    template = {**group["template"], "spec": {**group["template"]["spec"], **PLACE}}
    head = {"headGroupSpec": {**group, "template": template}}
    spec = {"suspend": suspend, **({} if suspend else {"rayClusterSpec": head})}
    simulated.namespace.patch("RayJob", simulated.ray_job["metadata"]["name"], {"spec": spec})


def test_preempted_job_continues_in_the_same_attempt(
    shared_operator: OperatorProcess, job: Any
) -> None:
    simulated = job(cluster=QUEUE)
    simulated.status("Pending", "Queued", "in LocalQueue gpu")
    assert simulated.ray_job["spec"]["suspend"] is True
    decide(simulated, suspend=False)
    simulated.start_cluster()
    simulated.start_driver()
    simulated.report("running", progress={"rows": 1, "total": 4, "percent": 25})
    assert "admittedTime" in simulated.status("Running")["attempts"][0]
    head = simulated.ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert head["template"]["spec"]["nodeSelector"] == PLACE["nodeSelector"], "it is not undone"
    decide(simulated, suspend=True)
    simulated.report("failed", reason="Interrupted", message="SIGTERM")
    simulated.status("Pending", "Queued")
    simulated.report("running", progress={"rows": 0, "total": 4, "percent": 0})  # another driver
    decide(simulated, suspend=False)
    simulated.report("succeeded", counts={"read": 4, "written": 4, "failed": 0, "filtered": 0})
    status = simulated.status("Succeeded")
    assert [attempt["outcome"] for attempt in status["attempts"]] == ["Succeeded"]
