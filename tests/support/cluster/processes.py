"""Kills the processes of containers, as the kernel does when a node is out of memory.

`kubectl exec` cannot do this: the kernel ignores SIGKILL from a container to its first process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from support.cluster.kubectl import Kubectl, Object

NAME = "process-killer"
KILL = 'kill -9 $(grep -ls "$0" /proc/[0-9]*/cgroup | cut -d/ -f3)'
"""Kills all processes in the control groups of a container, and fails if there are none."""


@dataclass(frozen=True)
class ProcessKiller:
    """A DaemonSet whose pods see and may kill all processes of their nodes."""

    kubectl: Kubectl

    def kill(self, pod: str) -> None:
        """Send SIGKILL to the first container of a pod in the namespace of the DaemonSet."""
        body = self.kubectl.get("pod", pod) or {}
        (container, *_) = body["status"]["containerStatuses"]
        _, _, container_id = container["containerID"].partition("://")
        (own,) = (
            text["metadata"]["name"]
            for text in self.kubectl.list("pods", f"app={NAME}")
            if text["spec"]["nodeName"] == body["spec"]["nodeName"]
        )
        self.kubectl("exec", own, "--", "sh", "-c", KILL, container_id)


@contextmanager
def process_killer(kubectl: Kubectl, image: str) -> Iterator[ProcessKiller]:
    """Run the DaemonSet during the block. Its image needs a shell and grep."""
    kubectl.apply(_daemon_set(image))
    try:
        kubectl("rollout", "status", f"daemonset/{NAME}", "--timeout=110s")
        yield ProcessKiller(kubectl)
    finally:
        kubectl("delete", "daemonset", NAME, "--wait=false")


def _daemon_set(image: str) -> Object:
    labels = {"app": NAME}
    container = {"name": NAME, "image": image, "command": ["sleep", "infinity"],
                 "securityContext": {"runAsUser": 0}}  # fmt: skip
    pod = {"hostPID": True, "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
