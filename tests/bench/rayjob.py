"""The hand-written RayJob of turnaround.py: the same pods and groups, without the operator."""

from __future__ import annotations

from typing import Any

from support.cluster.deployment import PIPELINE_IMAGE
from support.cluster.object_store import JOB_ENVIRONMENT

_SMALL = {"cpu": "100m", "memory": "256Mi"}


def ray_job(name: str, environment: dict[str, str]) -> dict[str, Any]:
    """Return a RayJob that runs the script on a head, a CPU worker and, on demand, a GPU worker."""
    env = JOB_ENVIRONMENT + [{"name": key, "value": value} for key, value in environment.items()]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {
            "submissionMode": "HTTPMode",
            "entrypoint": "python /etc/peer/peer.py",
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "rayVersion": "2.60.0",
                "enableInTreeAutoscaling": True,
                "autoscalerOptions": {
                    "version": "v2",
                    "idleTimeoutSeconds": 60,
                    "resources": {"limits": {"cpu": "500m", "memory": "512Mi"}, "requests": _SMALL},
                },
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},
                    "template": _pod("ray-head", env, {"cpu": "1", "memory": "4Gi"}, script=True),
                },
                "workerGroupSpecs": [
                    _group("cpu", env, 1, {"cpu": "2", "memory": "4Gi"}),
                    _group("gpu", env, 0, {"cpu": "1", "memory": "4Gi", "nvidia.com/gpu": "1"}),
                ],
            },
        },
    }


def _group(name: str, env: list[Any], least: int, limits: dict[str, str]) -> dict[str, Any]:
    return {
        "groupName": name,
        "replicas": least,
        "minReplicas": least,
        "maxReplicas": 2,
        "rayStartParams": {"num-cpus": limits["cpu"]},
        "template": _pod("ray-worker", env, limits),
    }


def _pod(
    name: str, env: list[Any], limits: dict[str, str], *, script: bool = False
) -> dict[str, Any]:
    gpus = {key: value for key, value in limits.items() if key == "nvidia.com/gpu"}
    container: dict[str, Any] = {
        "name": name,
        "image": PIPELINE_IMAGE,
        "env": env,
        "resources": {"limits": limits, "requests": _SMALL | gpus},
    }
    spec: dict[str, Any] = {"containers": [container]}
    if script:
        container["volumeMounts"] = [{"name": "peer", "mountPath": "/etc/peer"}]
        spec["volumes"] = [{"name": "peer", "configMap": {"name": "peer"}}]
    return {"spec": spec}
