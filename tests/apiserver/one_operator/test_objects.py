"""The operator creates the objects of a job and changes nothing else."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml

from batchinference import __version__
from batchinference.spec import parse
from support.documents.minimal import python_step
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import SimulatedJob

Object = dict[str, Any]


@pytest.fixture
def created(shared_operator: OperatorProcess, job: Any) -> SimulatedJob:
    """Return a job whose objects all exist."""
    created: SimulatedJob = job(steps=[python_step(resources={"gpu": 1})])
    created.status("Starting")
    return created


def test_a_job_gets_a_ray_job_with_its_file_and_token(created: SimulatedJob) -> None:
    """Kubernetes deletes the objects with the job, whether the operator runs or not. The RayJob
    owns the token, because KubeRay needs the token to stop the RayJob."""
    assert created.ray_job["metadata"]["name"] == "job-1"
    written = parse(yaml.safe_load(created.config_map["data"]["job.yaml"]))
    given = parse(created.body)
    assert (written.spec.read, written.spec.steps) == (given.spec.read, given.spec.steps)
    assert len(base64.b64decode(created.secret["data"]["auth_token"])) == 64
    assert owner(created.ray_job) == ("BatchInference", created.body["metadata"]["uid"])
    assert owner(created.config_map) == ("BatchInference", created.body["metadata"]["uid"])
    assert owner(created.secret) == ("RayJob", created.ray_job["metadata"]["uid"])


def owner(body: Object) -> tuple[str, str]:
    """Return kind and uid of the object's controller."""
    (owner_reference,) = body["metadata"]["ownerReferences"]
    assert owner_reference["controller"] is True
    return owner_reference["kind"], owner_reference["uid"]


def test_the_operator_is_named_in_managed_fields_and_requests(
    shared_operator: OperatorProcess, created: SimulatedJob
) -> None:
    for result in (created.body, created.ray_job, created.config_map, created.secret):
        managers = {entry["manager"] for entry in result["metadata"]["managedFields"]}
        assert "batchinference-operator" in managers
        assert "OpenAPI-Generator" not in managers
    requests = created.namespace.server.requests_of(shared_operator.user)
    agents = {event["userAgent"] for event in requests}
    assert agents == {f"batchinference-operator/{__version__}"}


def test_operator_does_not_change_the_spec(created: SimulatedJob) -> None:
    """GitOps tools see no finalizer, no annotation and no changed field."""
    created.succeed()
    created.status("Succeeded")
    body = created.body
    assert {"finalizers", "annotations", "labels"}.isdisjoint(body["metadata"])
    assert body["metadata"]["generation"] == 1
