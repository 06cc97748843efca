"""The chart's values change the behaviour of a running operator."""

from __future__ import annotations

from typing import Any

import urllib3

from batchinference import __version__
from support.documents.minimal import document
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import soon
from support.servers.api_server import ApiServer, Namespace, new_namespace

Object = dict[str, Any]


def test_default_image_comes_from_the_chart(operator: OperatorProcess, job: Any) -> None:
    for group in worker_groups(job().ray_job):
        image = group["template"]["spec"]["containers"][0]["image"]
        assert image == f"batchinference/pipeline:{__version__}"


def worker_groups(ray_job: Object) -> list[Object]:
    groups: list[Object] = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert groups
    return groups


def test_defaults_of_the_platform_reach_the_pods(
    new_operator: Any, namespace: Namespace, job: Any
) -> None:
    defaults = {
        "image": "registry.example/own:2",
        "requests": {"cpu": 0.1, "memory": "256Mi"},
        "env": [{"name": "AWS_REGION", "value": "eu-west-1"}],
        "nodeSelector": {"pool": "batch"},
    }
    new_operator(watchNamespaces=[namespace.name], defaults=defaults).start()
    for group in worker_groups(job().ray_job):
        spec = group["template"]["spec"]
        (container,) = spec["containers"]
        assert container["image"] == "registry.example/own:2"
        assert container["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi"}
        assert container["env"] == [{"name": "AWS_REGION", "value": "eu-west-1"}]
        assert spec["nodeSelector"] == {"pool": "batch"}


def test_jobs_in_other_namespaces_are_ignored(
    operator: OperatorProcess, server: ApiServer, job: Any
) -> None:
    elsewhere = new_namespace(server, f"{job().namespace.name}-other")
    elsewhere.create(document("job"))
    job("second").status("Starting")
    assert "status" not in elsewhere.get("BatchInference", "job")
    assert elsewhere.list("RayJob") == []


def test_the_health_endpoint_answers(operator: OperatorProcess) -> None:
    def healthy() -> bool:
        try:
            return urllib3.request("GET", operator.health, retries=False).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    assert soon("a healthy operator", healthy)
