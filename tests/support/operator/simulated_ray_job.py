"""A job whose RayJob, Ray cluster and driver are simulated by the test."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from batchinference.rendering import CLUSTER_LABEL
from batchinference.rendering.config_map import TOKEN_KEY
from batchinference.spec.report import Report
from support.cluster.kubectl import condition, eventually
from support.servers.api_server import Namespace
from support.servers.dashboard import Dashboard

Object = dict[str, Any]
Found = TypeVar("Found")

HEAD_IP = "10.244.0.9"
OUTPUT = "s3://out/result/"
PATIENCE = 60.0
"""Seconds that a change may take to appear in the status."""
LONG_AGO = timedelta(minutes=5)


def soon(what: str, condition: Callable[[], Found]) -> Found:
    """Return the first true value of a condition. Raises AssertionError after PATIENCE seconds."""
    return eventually(what, condition, PATIENCE, 0.1)


def stamp(ago: timedelta = timedelta()) -> str:
    return (datetime.now(UTC) - ago).strftime("%Y-%m-%dT%H:%M:%SZ")


class SimulatedJob:
    """A BatchInference, its RayJob and the dashboard of its Ray cluster."""

    def __init__(self, namespace: Namespace, name: str, dashboard: Dashboard) -> None:
        self.namespace = namespace
        self.name = name
        self.dashboard = dashboard
        self.attempt = 1

    # --- what the operator creates ----------------------------------------------------------

    @property
    def body(self) -> Object:
        body: Object = self.namespace.get("BatchInference", self.name)
        return body

    @property
    def ray_job(self) -> Object:
        """The RayJob of the current attempt. Waits until it exists."""
        name = f"{self.name}-{self.attempt}"
        return soon(f"RayJob {name}", lambda: self.namespace.find("RayJob", name))

    @property
    def secret(self) -> Object:
        """The Secret with the token of the Ray cluster. Waits until it exists."""
        name = self.ray_job["spec"]["rayClusterSpec"]["authOptions"]["secretName"]
        return soon(f"Secret {name}", lambda: self.namespace.find("Secret", name))

    @property
    def config_map(self) -> Object:
        head = self.ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
        volume = next(volume for volume in head["volumes"] if "configMap" in volume)
        body: Object = self.namespace.get("ConfigMap", volume["configMap"]["name"])
        return body

    def status(self, phase: str, reason: str = "", text: str = "") -> Object:
        """Wait for a phase, a reason and a text in the message, if given. Return the status."""

        def reached() -> Object | None:
            status = self.body.get("status", {})
            ready = status.get("conditions", [{}])[0]
            right = status.get("phase") == phase and text in ready["message"]
            return status if right and reason in ("", ready["reason"]) else None

        try:
            return soon(f"{phase} {reason} {text}", reached)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.body.get('status')}") from None

    def condition(self, kind: str) -> Object:
        """Wait until a condition is true, and return it."""
        return soon(
            f"{self.name} is {kind}", lambda: condition(self.body.get("status", {}), kind, "True")
        )

    def released(self) -> bool:
        """Wait until the operator allows KubeRay to delete the cluster."""
        return soon(
            f"the cluster of {self.name} is released",
            lambda: self.ray_job["spec"]["ttlSecondsAfterFinished"] == 0,
        )

    def suspend(self, value: bool) -> None:
        self.namespace.patch("BatchInference", self.name, {"spec": {"suspend": value}})

    # --- what KubeRay and the driver do -----------------------------------------------------

    def write_ray_job_status(self, deployment: str, job: str = "", **fields: Any) -> None:
        """Write the RayJob's status as KubeRay does: the states of deployment and driver."""
        status = {"jobDeploymentStatus": deployment, **fields}
        if job:
            status["jobStatus"] = job
        name = self.ray_job["metadata"]["name"]
        self.namespace.patch_status("RayJob", name, status)

    def start_cluster(self) -> None:
        """Make the Ray cluster ready. The dashboard answers requests with the cluster's token."""
        head = {"podIP": HEAD_IP, "serviceName": self.service}
        self.write_ray_job_status(
            "Running", rayClusterName=f"{self.name}-abcde", rayClusterStatus={"head": head}
        )
        token = base64.b64decode(self.secret["data"][TOKEN_KEY]).decode()
        self.dashboard.tokens[self.host] = token

    def create_pod(self, status: Object, group: int = 0) -> str:
        """Create a pod of a worker group with this status, and return its name."""
        ray_job, name = self.ray_job, f"{self.name}-worker-x"
        template = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"][group]["template"]
        cluster = ray_job.get("status", {}).get("rayClusterName", "")
        labels = {**template["metadata"]["labels"], CLUSTER_LABEL: cluster}
        metadata = {**template["metadata"], "name": name, "labels": labels}
        pod = {**template, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        self.namespace.create(pod)
        self.namespace.patch_status("Pod", name, status)
        return name

    def start_driver(self) -> None:
        self.write_ray_job_status("Running", "RUNNING", startTime=stamp())

    def report(self, state: str, **fields: Any) -> None:
        """Set the report that the driver gives from now on."""
        fields = {"output": OUTPUT, "startedAt": stamp(), "updatedAt": stamp(), **fields}
        text = json.dumps({"name": self.name, "state": state, "version": "0.1.0", **fields})
        self.dashboard.reports[self.host, HEAD_IP] = Report.parse(text)

    def succeed(self) -> None:
        """Simulate a successful run, from the ready cluster to the end."""
        self.start_cluster()
        self.start_driver()
        self.report("succeeded", counts={"read": 10, "written": 10, "failed": 0, "filtered": 0})
        self.write_ray_job_status("Complete", "SUCCEEDED", endTime=stamp())

    @property
    def service(self) -> str:
        """The name of the head's Service. Each attempt has its own Service and reports."""
        return f"{self.name}-{self.attempt}-head-svc"

    @property
    def host(self) -> str:
        return f"{self.service}.{self.namespace.name}.svc.cluster.local"
