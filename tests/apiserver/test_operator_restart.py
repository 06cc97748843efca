"""The operator is killed and started again: no job is lost or run twice.

Three tests run at each landing. The unit tests of the controller kill it at every call.
"""

from __future__ import annotations

from typing import Any

import pytest

from batchinference import __version__
from batchinference.rendering import Names, Owner, attempt_objects, effective
from batchinference.spec import parse
from batchinference.spec.cluster import Cluster
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import stamp
from support.servers.api_server import Namespace

Object = dict[str, Any]

COUNTS = {"read": 10, "written": 10, "failed": 0, "skipped": 0}


@pytest.fixture
def stopped(new_operator: Any, namespace: Namespace) -> OperatorProcess:
    """Return an operator that has not been started."""
    stopped: OperatorProcess = new_operator(watchNamespaces=[namespace.name])
    return stopped


@pytest.mark.long("faults")
def test_job_created_during_downtime_is_run(stopped: OperatorProcess, job: Any) -> None:
    waiting = job()
    stopped.start()
    waiting.play_success()
    assert waiting.status("Succeeded")["counts"] == COUNTS


@pytest.mark.parametrize("defaults", ["as before", "changed"])
def test_restart_after_config_map_resumes_creation(
    stopped: OperatorProcess, namespace: Namespace, job: Any, defaults: str
) -> None:
    half = job()
    image = f"batchinference/pipeline:{__version__}" if defaults == "as before" else "before:1"
    complete = effective(parse(half.body), Cluster(image=image))
    uid = half.body["metadata"]["uid"]
    before = namespace.create(attempt_objects(complete, Names("job", uid, 1), Owner("job", uid))[0])
    stopped.start()
    half.status("Starting")
    assert (half.config_map == before) is (defaults == "as before")
    assert "before:1" not in half.config_map["data"]["job.yaml"]
    half.play_success()
    half.status("Succeeded")


@pytest.mark.long("faults")
@pytest.mark.parametrize("token", ["before its token", "after its token"])
def test_restart_after_ray_job_resumes_creation(
    operator: OperatorProcess, namespace: Namespace, job: Any, token: str
) -> None:
    created = job()
    created.status("Starting")
    operator.kill()
    before = created.ray_job
    if token == "before its token":
        namespace.delete("Secret", created.secret["metadata"]["name"])
    namespace.patch_status("BatchInference", "job", None)
    assert "status" not in created.body
    operator.start()
    created.status("Starting")
    assert created.ray_job["metadata"]["uid"] == before["metadata"]["uid"]
    created.play_success()
    created.status("Succeeded")


def test_end_of_job_during_downtime_is_seen(operator: OperatorProcess, job: Any) -> None:
    running = job()
    running.play_cluster()
    running.play_driver()
    running.report("running", progress={"rows": 4})
    running.status("Running")
    operator.kill()
    running.report("succeeded", counts=COUNTS)
    running.play("Complete", "SUCCEEDED", endTime=stamp())
    operator.start()
    assert running.status("Succeeded")["counts"] == COUNTS


@pytest.mark.long("faults")
def test_ray_job_deleted_during_downtime_fails_the_job(
    operator: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    running = job()
    running.status("Starting")
    operator.kill()
    namespace.delete("RayJob", "job-1")
    operator.start()
    running.status("Failed", "RayJobDeleted")
    assert namespace.list("RayJob") == []


@pytest.mark.long("faults")
def test_job_deleted_during_downtime_stays_deleted(
    operator: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    job().status("Starting")
    operator.kill()
    namespace.delete("BatchInference", "job")
    namespace.delete("RayJob", "job-1")
    operator.start()
    job("next").status("Starting")
    assert [found["metadata"]["name"] for found in namespace.list("RayJob")] == ["next-1"]


@pytest.mark.long("faults")
def test_cluster_of_finished_job_is_released_after_restart(
    operator: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    finished = job()
    finished.play_success()
    finished.status("Succeeded")
    operator.kill()
    namespace.patch("RayJob", "job-1", {"spec": {"ttlSecondsAfterFinished": 600}})
    operator.start()
    assert finished.released()


@pytest.mark.long("faults")
def test_finished_job_is_not_changed_after_restart(operator: OperatorProcess, job: Any) -> None:
    finished = job()
    finished.play_success()
    finished.status("Succeeded")
    assert finished.released()
    operator.kill()
    before = finished.body, finished.ray_job
    operator.start()
    job("next").status("Starting")
    assert (finished.body, finished.ray_job) == before


def test_repeated_kills_create_one_ray_job_per_job(
    operator: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    jobs = []
    for turn in range(3):
        jobs += [job(f"job-{turn}-{number}") for number in range(5)]
        jobs[-1].ray_job  # noqa: B018 - wait until the operator has reached the last job
        operator.kill()
        operator.start()
    for played in jobs:
        played.play_success()
    for played in jobs:
        assert played.status("Succeeded")["counts"] == COUNTS
    assert len(namespace.list("RayJob")) == len(jobs)
    assert len(namespace.list("ConfigMap")) == len(jobs)
    assert len(namespace.list("Secret")) == len(jobs)
