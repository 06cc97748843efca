"""Simulates KubeRay, the scheduler and the kubelet while the pods of a job are created.

The API server has no controllers. So this creates the pods, their status changes and their Events
in the same order as a cluster that adds a node and then pulls an image.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from support.operator.simulated_ray_job import SimulatedJob, stamp

Object = dict[str, Any]

PULL_SECONDS = 30.0
"""Seconds for which the containers of all pods are being created."""
SCHEDULED = timedelta(seconds=75)
"""The time since the pods were scheduled: long, so the operator reads their Events at once."""
_NOT_READY = {"ready": False, "restartCount": 0, "image": "", "imageID": ""}


class StartingJob(SimulatedJob):
    """A job whose head and workers are created step by step."""

    @property
    def cluster(self) -> str:
        return f"{self.name}-abcde"

    @property
    def pods(self) -> dict[str, Object]:
        """The pods of the head and of one worker of each group, by name."""
        spec = self.ray_job["spec"]["rayClusterSpec"]
        groups = [{"groupName": "head", **spec["headGroupSpec"]}, *spec["workerGroupSpecs"]]
        return {f"{self.cluster}-{one['groupName']}": self._pod(one) for one in groups}

    def _pod(self, group: Object) -> Object:
        node_type = "head" if group["groupName"] == "head" else "worker"
        labels = {"ray.io/cluster": self.cluster, "ray.io/node-type": node_type,
                  "ray.io/group": group["groupName"]}  # fmt: skip
        metadata = group["template"]["metadata"]
        metadata = {**metadata, "labels": {**metadata["labels"], **labels}}
        spec = group["template"]["spec"]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def create_cluster(self) -> None:
        self.write_ray_job_status("Initializing", rayClusterName=self.cluster)

    def create_pods(self) -> None:
        for name, pod in self.pods.items():
            self.namespace.create({**pod, "metadata": {**pod["metadata"], "name": name}})

    def wait_for_a_node(self) -> None:
        reason = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
        for name in self.pods:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            self._set_status(name, conditions=[{**condition, "message": reason}])
            self._post_event(name, "FailedScheduling", reason, "Warning")

    def schedule(self) -> None:
        for name in self.pods:
            self._set_status(name, conditions=[self._scheduled()])
            self._post_event(name, "Scheduled", f"Successfully assigned {name} to node-1")

    def pull_image(self) -> None:
        for name, pod in self.pods.items():
            waiting = {"waiting": {"reason": "ContainerCreating"}}
            self._set_status(name, containerStatuses=self._containers(pod, waiting))
            self._post_event(name, "Pulling", 'Pulling image "registry/pipeline:1"')

    def start_containers(self) -> None:
        for name, pod in self.pods.items():
            for reason in ("Pulled", "Created", "Started"):
                self._post_event(name, reason, f"{reason} container ray")
            running = {"running": {"startedAt": stamp()}}
            containers = self._containers(pod, running)
            self._set_status(name, phase="Running", containerStatuses=containers)

    def become_ready(self) -> None:
        for name in self.pods:
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp()}
            self._set_status(name, phase="Running", conditions=[self._scheduled(), ready])
        self.start_cluster()
        self.start_driver()
        self.report("running", progress={"rows": 1})

    def _scheduled(self) -> Object:
        return {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(SCHEDULED)}

    def _containers(self, pod: Object, state: Object) -> list[Object]:
        names = [container["name"] for container in pod["spec"]["containers"]]
        return [{"name": name, "state": state, **_NOT_READY} for name in names]

    def _set_status(self, pod: str, **status: Any) -> None:
        self.namespace.patch_status("Pod", pod, status)

    def _post_event(self, pod: str, reason: str, message: str, kind: str = "Normal") -> None:
        about = {"kind": "Pod", "name": pod, "namespace": self.namespace.name}
        self.namespace.create({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{pod}.{reason.lower()}"},
            "involvedObject": about, "type": kind, "reason": reason, "message": message,
            "firstTimestamp": stamp(), "lastTimestamp": stamp(), "count": 1,
        })  # fmt: skip
