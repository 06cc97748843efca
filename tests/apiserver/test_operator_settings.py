"""The chart's values change the behaviour of a running operator."""

from __future__ import annotations

from typing import Any

from support.documents.minimal import document
from support.servers.api_server import ApiServer, Namespace, new_namespace


def test_defaults_reach_the_pods_of_watched_namespaces_only(
    new_operator: Any, server: ApiServer, namespace: Namespace, job: Any
) -> None:
    defaults = {
        "image": "registry.example/own:2",
        "requests": {"cpu": 0.1, "memory": "256Mi"},
        "env": [{"name": "AWS_REGION", "value": "eu-west-1"}],
        "nodeSelector": {"pool": "batch"},
    }
    new_operator(watchNamespaces=[namespace.name], defaults=defaults).start()
    elsewhere = new_namespace(server, f"{namespace.name}-other")
    elsewhere.create(document("job"))
    (group,) = job().ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    spec = group["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == "registry.example/own:2"
    assert container["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi"}
    assert {"name": "AWS_REGION", "value": "eu-west-1"} in container["env"]
    assert spec["nodeSelector"] == {"pool": "batch"}
    assert "status" not in elsewhere.get("BatchInference", "job")
    assert elsewhere.list("RayJob") == []
