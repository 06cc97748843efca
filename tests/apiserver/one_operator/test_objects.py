"""The operator creates the objects of a job and changes nothing else."""

from __future__ import annotations

import base64
import hmac
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from batchinference import __version__
from batchinference.rendering import NAME_LABEL
from batchinference.spec import parse
from support.documents.minimal import python_step
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import PlayedJob
from support.servers.api_server import Namespace

Object = dict[str, Any]


@pytest.fixture
def created(operator_of_all: OperatorProcess, job: Any) -> PlayedJob:
    """Return a job whose objects all exist."""
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


def test_default_image_comes_from_the_chart(created: PlayedJob) -> None:
    for group in created.ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        image = group["template"]["spec"]["containers"][0]["image"]
        assert image == f"batchinference/pipeline:{__version__}"


def test_objects_have_owner_references(created: PlayedJob) -> None:
    """Kubernetes deletes the objects with the job, whether the operator runs or not. The RayJob
    owns the token, because KubeRay needs the token to stop the RayJob."""
    assert owner(created.ray_job) == ("BatchInference", created.body["metadata"]["uid"])
    assert owner(created.config_map) == ("BatchInference", created.body["metadata"]["uid"])
    assert owner(created.secret) == ("RayJob", created.ray_job["metadata"]["uid"])


def owner(body: Object) -> tuple[str, str]:
    """Return kind and uid of the object's controller."""
    (found,) = body["metadata"]["ownerReferences"]
    assert found["controller"] is True
    return found["kind"], found["uid"]


def test_objects_have_the_job_label(created: PlayedJob) -> None:
    for found in (created.ray_job, created.config_map, created.secret):
        labels = found["metadata"]["labels"]
        assert labels["batchinference.dev/name"] == "job"
        assert labels["app.kubernetes.io/managed-by"] == "batchinference-operator"


def test_the_operator_is_named_in_managed_fields_and_requests(
    operator_of_all: OperatorProcess, created: PlayedJob
) -> None:
    for found in (created.body, created.ray_job, created.config_map, created.secret):
        managers = {entry["manager"] for entry in found["metadata"]["managedFields"]}
        assert "batchinference-operator" in managers
        assert "OpenAPI-Generator" not in managers
    requests = created.namespace.server.requests_of(operator_of_all.user)
    agents = {event["userAgent"] for event in requests}
    assert agents == {f"batchinference-operator/{__version__}"}


def test_token_is_derived_from_the_installation_key(
    operator_of_all: OperatorProcess, created: PlayedJob
) -> None:
    """The operator can thus talk to a cluster after a restart without a right to read Secrets."""
    (secret,) = (found for found in operator_of_all.manifests if found["kind"] == "Secret")
    key = base64.b64decode(secret["data"]["key"])
    metadata, ray_job = created.body["metadata"], created.ray_job["metadata"]["name"]
    about = ["batchinference.dev/ray-cluster-token/v1"]
    about += [metadata["namespace"], metadata["name"], metadata["uid"], ray_job]
    expected = hmac.new(key, "\n".join(about).encode(), "sha256").hexdigest()
    assert base64.b64decode(created.secret["data"]["auth_token"]).decode() == expected


def test_operator_watches_only_labelled_pods_and_ray_jobs(
    operator_of_all: OperatorProcess, created: PlayedJob
) -> None:
    """Otherwise the API server would send it every pod of the cluster."""
    asked = [
        urlsplit(event["requestURI"])
        for event in created.namespace.server.requests_of(operator_of_all.user)
        if event["verb"] in ("list", "watch")
    ]
    queries = [parse_qs(uri.query) for uri in asked if uri.path.endswith(("/pods", "/rayjobs"))]
    # a list with limit 1 only checks whether the kind exists
    queries = [query for query in queries if query.get("limit") != ["1"]]
    assert len(queries) >= 4
    selectors = [query.get("labelSelector", [""])[0] for query in queries]
    assert [each for each in selectors if not each.startswith(NAME_LABEL)] == []


def test_spec_of_the_job_is_not_changed(created: PlayedJob) -> None:
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
def test_spec_refused_by_parser_fails_and_names_the_field(
    operator_of_all: OperatorProcess, job: Any, spec: Object, field: str
) -> None:
    failed = job(**spec)
    condition = failed.condition("Failed")
    assert condition["reason"] == "InvalidSpec"
    assert field in condition["message"]
    for kind in ("RayJob", "ConfigMap", "Secret"):
        assert failed.namespace.list(kind) == []


def test_foreign_ray_job_is_not_changed(
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


def test_recreated_job_waits_for_the_old_ray_job(
    operator_of_all: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    old = job()
    old.status("Starting")
    before = old.ray_job["metadata"]["uid"]
    namespace.delete("BatchInference", "job")
    new = job()
    new.status("Pending", "NameTaken", words="RayJob job-1 of a deleted BatchInference")
    namespace.delete("RayJob", "job-1")  # in place of the garbage collector
    new.status("Starting")
    assert new.ray_job["metadata"]["uid"] != before


def test_job_being_deleted_gets_no_objects(
    operator_of_all: OperatorProcess, namespace: Namespace, job: Any
) -> None:
    deleted = job()
    deleted.status("Starting")
    namespace.delete("BatchInference", "job")
    namespace.delete("RayJob", "job-1")
    job("next").status("Starting")
    assert [found["metadata"]["name"] for found in namespace.list("RayJob")] == ["next-1"]
