"""What the operator creates for a job, and that it touches nothing else."""

from __future__ import annotations

import base64
import hmac
from typing import Any

import pytest
import yaml

from batchinference.spec import parse
from support.apiserver import Namespace
from support.documents import python_step
from support.operator_process import OperatorProcess
from support.played import PlayedJob

Object = dict[str, Any]


@pytest.fixture
def created(operator_of_all: OperatorProcess, job: Any) -> PlayedJob:
    """A job whose objects are all there."""
    created: PlayedJob = job(steps=[python_step(resources={"gpu": 1})])
    created.status("Starting")
    return created


def test_a_job_gets_a_ray_job_with_its_file_and_token(created: PlayedJob) -> None:
    assert created.ray_job["metadata"]["name"] == "job-1"
    written = parse(yaml.safe_load(created.config_map["data"]["job.yaml"]))
    given = parse(created.body)
    assert written.spec.steps == given.spec.steps
    assert written.spec.read == given.spec.read
    assert len(base64.b64decode(created.secret["data"]["auth_token"])) == 64


def test_every_object_goes_with_its_job(created: PlayedJob) -> None:
    """By its owner: Kubernetes deletes it with the job, whether the operator runs or not. The token
    goes with the RayJob, which KubeRay cannot stop without."""
    assert owner(created.ray_job) == ("BatchInference", created.body["metadata"]["uid"])
    assert owner(created.config_map) == ("BatchInference", created.body["metadata"]["uid"])
    assert owner(created.secret) == ("RayJob", created.ray_job["metadata"]["uid"])


def owner(body: Object) -> tuple[str, str]:
    """Kind and uid of what a part of a job goes with."""
    (found,) = body["metadata"]["ownerReferences"]
    assert found["controller"] is True
    return found["kind"], found["uid"]


def test_every_object_names_its_job(created: PlayedJob) -> None:
    for found in (created.ray_job, created.config_map, created.secret):
        labels = found["metadata"]["labels"]
        assert labels["batchinference.dev/name"] == "job"
        assert labels["app.kubernetes.io/managed-by"] == "batchinference-operator"


def test_the_token_follows_from_the_key_of_the_installation(
    operator_of_all: OperatorProcess, created: PlayedJob
) -> None:
    """So no right to read Secrets is needed to talk to a cluster after a restart."""
    (secret,) = (found for found in operator_of_all.manifests if found["kind"] == "Secret")
    key = base64.b64decode(secret["data"]["key"])
    expected = hmac.new(key, created.body["metadata"]["uid"].encode(), "sha256").hexdigest()
    assert base64.b64decode(created.secret["data"]["auth_token"]).decode() == expected


def test_the_job_itself_stays_as_it_was_written(created: PlayedJob) -> None:
    """GitOps tools see no finalizer, no annotation and no changed field."""
    created.play_success()
    created.status("Succeeded")
    body = created.body
    assert {"finalizers", "annotations", "labels"}.isdisjoint(body["metadata"])
    assert body["metadata"]["generation"] == 1


INVALID = {
    "a path that no pod has": (
        {"read": {"format": "text", "paths": ["./data"]}},
        "spec.read.paths[0]",
    ),
    "a scheme that is not known": (
        {"write": {"format": "json", "path": "hdfs://bucket/out"}},
        "spec.write.path",
    ),
    "a filter that does not parse": (
        {"steps": [{"name": "keep", "filter": "import os"}]},
        "spec.steps[0].filter",
    ),
}


@pytest.mark.parametrize(("spec", "field"), INVALID.values(), ids=INVALID)
def test_a_spec_that_only_the_parser_finds_wrong_fails_in_words_that_name_the_field(
    operator_of_all: OperatorProcess, job: Any, spec: Object, field: str
) -> None:
    failed = job(**spec)
    condition = failed.condition("Failed")
    assert condition["reason"] == "InvalidSpec"
    assert field in condition["message"]
    for kind in ("RayJob", "ConfigMap", "Secret"):
        assert failed.namespace.list(kind) == []


def test_a_ray_job_of_somebody_else_is_not_touched(
    operator_of_all: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    ours = job("first").ray_job
    metadata = {"name": "second-1", "labels": {"team": "vision"}}
    theirs = namespace.create({**foreign(ours), "metadata": metadata})
    second = job("second")
    second.status("Pending", "NameTaken", words="a RayJob named second-1 exists")
    assert namespace.get("RayJob", "second-1") == theirs
    namespace.delete("RayJob", "second-1")
    second.status("Starting")
    assert owner(second.ray_job) == ("BatchInference", second.body["metadata"]["uid"])


def foreign(ray_job: Object) -> Object:
    return {key: ray_job[key] for key in ("apiVersion", "kind", "spec")}


def test_a_job_created_anew_waits_until_the_ray_job_of_the_old_one_is_gone(
    operator_of_all: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    old = job()
    old.status("Starting")
    before = old.ray_job["metadata"]["uid"]
    namespace.delete("BatchInference", "job")
    new = job()
    new.status("Pending", "NameTaken", words="RayJob job-1 of a deleted BatchInference")
    namespace.delete("RayJob", "job-1")  # the garbage collector's part
    new.status("Starting")
    assert new.ray_job["metadata"]["uid"] != before


def test_nothing_is_created_for_a_job_that_is_deleted(
    operator_of_all: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    deleted = job()
    deleted.status("Starting")
    namespace.delete("BatchInference", "job")
    namespace.delete("RayJob", "job-1")
    job("next").status("Starting")
    assert [found["metadata"]["name"] for found in namespace.list("RayJob")] == ["next-1"]
