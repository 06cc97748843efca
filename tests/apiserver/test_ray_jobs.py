"""Rendered objects are validated by KubeRay's definition and by Kubernetes."""

from __future__ import annotations

import copy
import uuid
from typing import Any

import pytest
import yaml

from batchinference.rendering import (
    Names,
    Owner,
    attempt_objects,
    token_secret,
    with_platform_defaults,
)
from batchinference.spec import parse
from batchinference.spec.cluster import Cluster
from support.cluster.deployment import ROOT
from support.documents.minimal import document, model_step, python_step
from support.documents.variations import REMOVED, changed, full_document
from support.servers.api_server import ApiServer, Namespace, new_namespace

Object = dict[str, Any]

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
DEFAULTS = Cluster(image="registry.example/pipeline:1")


def own_steps(*resources: Object) -> list[Object]:
    return [python_step(f"s{at}", resources=one) for at, one in enumerate(resources)]


def example(name: str) -> Object:
    text = (ROOT / "examples" / name / "job.yaml").read_text()
    body: Object = yaml.safe_load(text.replace("./", "s3://bucket/"))
    return body


JOBS = {
    "as small as it can be": document(),
    # devices of claims cannot be counted, so they have no limits, and jobs that scale no topology
    "with everything": changed(
        changed(full_document(), ("spec", "cluster", "limits"), {"cpu": 2000.5}),
        ("spec", "cluster", "topology"),
        REMOVED,
    ),
    "a name of 40": document("a" * 40),
    "one GPU": document(steps=[model_step(resources={"gpu": 1}, replicas={"min": 1, "max": 4})]),
    "several worker groups": document(
        steps=own_steps({"cpu": 1}, {"gpu": 1}, {"gpu": 4, "memory": "64Gi"}, {"cpu": 0.25})
    ),
    "many replicas": document(steps=[python_step(replicas={"min": 100, "max": 10000})]),
    "more workers than one": document(cluster={"workers": {"min": 2, "max": 9, "cpu": 1.5}}),
    "an empty variable": document(cluster={"env": [{"name": "EMPTY", "value": ""}]}),
    "text embeddings": example("text-embeddings"),
    "image classification": example("image-classification"),
    "several kinds of devices": document(
        steps=own_steps({"gpu": 2, "acceleratorType": "T4"}, {"custom": {"NPU": 1, "seat": 3}}),
        cluster={"profiles": {"T4": {"nodeSelector": {"gpu": "t4"}}, "seat": {}}},
    ),
}


def rendered(body: Object) -> list[Object]:
    """Return the ConfigMap, Secret and RayJob of a job, as if the API server stored the job."""
    job = with_platform_defaults(parse(body), DEFAULTS)
    uid = str(uuid.uuid4())
    names, owner = Names(job.metadata.name, uid, 1), Owner(job.metadata.name, uid)
    config_map, ray_job = attempt_objects(job, names, owner, 1)
    return [config_map, token_secret(job.metadata.namespace, names, "0" * 64, owner), ray_job]


@pytest.mark.parametrize("body", JOBS.values(), ids=JOBS)
def test_rendered_objects_are_stored_without_loss(
    module_namespace: Namespace, kuberay: None, body: Object
) -> None:
    """The server refuses unknown fields."""
    config_map, secret, written = rendered(body)
    for manifest in (config_map, secret):
        module_namespace.create(manifest, dryRun="All")
    stored = module_namespace.create(written, dryRun="All")
    assert without_defaults(stored["spec"], written["spec"]) == written["spec"]


def without_defaults(stored: Any, written: Any) -> Any:
    """Return the stored value without fields that were not written."""
    if isinstance(written, dict):
        return {key: without_defaults(stored.get(key), value) for key, value in written.items()}
    if isinstance(written, list) and len(stored) == len(written):
        return [without_defaults(*pair) for pair in zip(stored, written, strict=True)]
    return stored


@pytest.fixture(scope="module")
def restricted(server: ApiServer) -> Namespace:
    """Return a namespace with the restricted Pod Security level, and create the objects that the
    pods refer to."""
    namespace = new_namespace(server, f"restricted-{uuid.uuid4().hex[:8]}", RESTRICTED)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}}
    namespace.create(account)
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "batch"},
        "value": 10,
    }
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "xpu"},
        "handler": "xpu",
    }
    for one in (priority, runtime):
        server.apply(one)
    return namespace


def pods_of(body: Object) -> list[Object]:
    """Return one pod for the head and one for each worker group."""
    cluster = rendered(body)[-1]["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            **group["template"],
            "metadata": {"name": f"pod-{number}", **group["template"]["metadata"]},
        }
        for number, group in enumerate(groups)
    ]


@pytest.mark.parametrize("body", JOBS.values(), ids=JOBS)
def test_pods_meet_restricted_pod_security(restricted: Namespace, body: Object) -> None:
    body = copy.deepcopy(body)
    # the restricted level forbids volumes of these kinds
    cluster = body["spec"].get("cluster", {})
    volumes = cluster.pop("volumes", [])
    cluster["volumes"] = [one for one in volumes if {"hostPath", "nfs"}.isdisjoint(one)]
    for pod in pods_of(body):
        restricted.create(pod, dryRun="All")
