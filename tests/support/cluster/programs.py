"""Python programs that serve on a port in the cluster."""

from __future__ import annotations

from support.cluster.deployment import PIPELINE_IMAGE
from support.cluster.kubectl import Kubectl
from support.cluster.object_store import RESTRICTED, pod, service


def start_program(kubectl: Kubectl, name: str, program: str, port: int, seconds: int) -> None:
    """Start a program in a pod behind a Service, and wait until the pod is ready."""
    container = {
        "name": name,
        "image": PIPELINE_IMAGE,
        "command": ["python3", "-c", program],
        "securityContext": RESTRICTED,
    }
    kubectl.apply(pod(name, [container], []), service(name, port))
    ready = ("--for=condition=Ready", f"pod/{name}", f"--timeout={seconds}s")
    kubectl("wait", *ready, timeout=seconds + 10)
