"""The operator is killed and started again: no job is lost or run twice.

The unit tests of the controller kill it at every call.
"""

from __future__ import annotations

from typing import Any

from batchinference.rendering import Names, Owner, attempt_objects, with_platform_defaults
from batchinference.spec import parse
from batchinference.spec.cluster import Cluster
from support.operator.process import OperatorProcess
from support.servers.api_server import Namespace

COUNTS = {"read": 10, "written": 10, "failed": 0, "filtered": 0, "warned": 0}


def test_restart_after_config_map_resumes_creation_with_new_defaults(
    new_operator: Any, namespace: Namespace, job: Any
) -> None:
    half = job()
    complete = with_platform_defaults(parse(half.body), Cluster(image="before:1"))
    uid = half.body["metadata"]["uid"]
    before = namespace.create(attempt_objects(complete, Names("job", uid, 1), Owner("job", uid))[0])
    new_operator(watchNamespaces=[namespace.name]).start()
    half.status("Starting")
    assert half.config_map != before
    assert "before:1" not in half.config_map["data"]["job.yaml"]
    half.succeed()
    half.status("Succeeded")


def test_repeated_kills_create_one_ray_job_per_job(
    operator: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    jobs = []
    for turn in range(2):
        jobs += [job(f"job-{turn}-{number}") for number in range(5)]
        jobs[-1].ray_job  # noqa: B018 - wait until the operator has reached the last job
        operator.kill()
        operator.start()
    for simulated in jobs:
        simulated.succeed()
    for simulated in jobs:
        assert simulated.status("Succeeded")["counts"] == COUNTS
    assert len(namespace.list("RayJob")) == len(jobs)
    assert len(namespace.list("ConfigMap")) == len(jobs)
    assert len(namespace.list("Secret")) == len(jobs)
