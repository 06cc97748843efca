"""The hand-written RayJob of turnaround.py: the same pods and groups, without the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.cluster.deployment import PIPELINE_IMAGE
from support.cluster.object_store import JOB_ENVIRONMENT
from support.documents.yaml_files import read_yaml


def ray_job(name: str, environment: dict[str, str]) -> dict[str, Any]:
    """Return a RayJob that runs the script on a head, a CPU worker and, on demand, a GPU worker."""
    env = JOB_ENVIRONMENT + [{"name": key, "value": value} for key, value in environment.items()]
    made = read_yaml(Path(__file__).with_suffix(".yaml"))
    made["metadata"]["name"] = name
    cluster = made["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        for container in group["template"]["spec"]["containers"]:
            container |= {"image": PIPELINE_IMAGE, "env": env}
    return made
