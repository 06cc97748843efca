"""Several attempts of a job, and suspension."""

from __future__ import annotations

from typing import Any

from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import SimulatedJob, soon
from support.servers.api_server import Namespace


def running_job(job: Any, **spec: Any) -> SimulatedJob:
    """Return a job whose driver runs and has reported progress."""
    simulated: SimulatedJob = job(**spec)
    simulated.start_cluster()
    simulated.start_driver()
    simulated.report("running", progress={"rows": 410, "total": 1000, "percent": 41})
    simulated.status("Running")
    return simulated


def test_changed_deadline_reaches_the_ray_job(
    shared_operator: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    simulated = running_job(job, deadlines={"active": "1h", "pending": "1h"})
    assert deadlines_of(simulated) == (7200, 7200)
    namespace.patch("BatchInference", "job", {"spec": {"deadlines": {"active": "2h"}}})
    soon("a later end", lambda: deadlines_of(simulated) == (10_800, 7200))
    namespace.patch("BatchInference", "job", {"spec": {"deadlines": None}})
    soon("no end", lambda: deadlines_of(simulated) == (None, None))
    assert simulated.body["status"]["phase"] == "Running"


def deadlines_of(simulated: SimulatedJob) -> tuple[int | None, int | None]:
    """Return the active and the pending deadline of the job's RayJob, in seconds."""
    spec = simulated.ray_job["spec"]
    return spec.get("activeDeadlineSeconds"), spec.get("preRunningDeadlineSeconds")


def test_change_of_finished_job_is_observed(
    shared_operator: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    """Tools that wait for a job consider it in progress until the change is observed."""
    finished = job()
    finished.succeed()
    finished.status("Succeeded")
    namespace.patch("BatchInference", "job", {"spec": {"ttl": {"rayJob": "1s"}}})
    soon("it is observed", lambda: finished.body["status"]["observedGeneration"] == 2)
    soon("the RayJob is gone", lambda: namespace.find("RayJob", "job-1") is None)
    assert finished.body["status"]["phase"] == "Succeeded"
