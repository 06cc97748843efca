"""Jobs in a queue of Kueue, which the test simulates, on a real API server."""

from __future__ import annotations

from typing import Any

from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import PlayedJob

QUEUE = {"queue": "gpu", "queuePriorityClass": "nightly"}
PLACE = {"nodeSelector": {"flavor": "spot"}}


def decide(played: PlayedJob, suspend: bool) -> None:
    """Suspend or admit a RayJob as Kueue does: set whether it may run, and on which nodes."""
    group = played.ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]
    template = {**group["template"], "spec": {**group["template"]["spec"], **PLACE}}
    head = {"headGroupSpec": {**group, "template": template}}
    spec = {"suspend": suspend, **({} if suspend else {"rayClusterSpec": head})}
    played.namespace.patch("RayJob", played.ray_job["metadata"]["name"], {"spec": spec})


def test_preempted_job_continues_in_the_same_attempt(
    operator_of_all: OperatorProcess, job: Any
) -> None:
    played = job(cluster=QUEUE)
    played.status("Pending", "Queued", "waits to be admitted by Kueue from queue gpu")
    assert played.ray_job["spec"]["suspend"] is True
    decide(played, suspend=False)
    played.play_cluster()
    played.play_driver()
    played.report("running", progress={"rows": 1, "total": 4, "percent": 25})
    assert "admittedTime" in played.status("Running")["attempts"][0]
    head = played.ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert head["template"]["spec"]["nodeSelector"] == PLACE["nodeSelector"], "it is not undone"
    decide(played, suspend=True)
    played.report("failed", reason="Interrupted", message="SIGTERM")
    played.status("Pending", "Queued")
    played.report("running", progress={"rows": 0, "total": 4, "percent": 0})  # another driver
    decide(played, suspend=False)
    played.report("succeeded", counts={"read": 4, "written": 4, "failed": 0, "filtered": 0})
    status = played.status("Succeeded")
    assert [attempt["outcome"] for attempt in status["attempts"]] == ["Succeeded"]
