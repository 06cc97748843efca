"""The product on the cluster of KUBECONFIG, installed by Helm as a user would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from batchinference.pipeline.devices import SIMULATED
from support.engines import missing, program
from support.kubectl import Kubectl, run
from support.objectstore import JOB_ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "batch-inference-operator"
RELEASE = "batchinference"
NAMESPACE = os.environ.get("NAMESPACE", "batchinference-system")
REGISTRY = os.environ.get("REGISTRY", "localhost:5000")
TAG = os.environ.get("TAG", "dev")
PIPELINE_IMAGE = f"{REGISTRY}/batchinference/pipeline:{TAG}"
CUSTOM_STEP_IMAGE = f"{REGISTRY}/batchinference/custom-step:{TAG}"

VALUES: dict[str, Any] = {
    # the tag may be an old one, of which a node keeps an old image
    "image": {
        "repository": f"{REGISTRY}/batchinference/operator",
        "tag": TAG,
        "pullPolicy": "Always",
    },
    "defaults": {
        "image": PIPELINE_IMAGE,
        "imagePullPolicy": "Always",
        # the tests' nodes are small: pods ask for little and may use more
        "requests": {"cpu": 0.1, "memory": "256Mi"},
        # the tests' nodes may count GPUs that they do not have
        "env": [*JOB_ENVIRONMENT, {"name": SIMULATED, "value": "1"}],
    },
}


def require_cluster() -> None:
    """Skip where there is no cluster with KubeRay."""
    program("kubectl", "https://kubernetes.io/docs/tasks/tools/")
    program("helm", "https://helm.sh/docs/intro/install/")
    command = ["kubectl", "get", "crd", "rayjobs.ray.io", "--request-timeout=10s"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        missing("a cluster with KubeRay", f"`make kind-up images`, set KUBECONFIG ({found.stderr})")


_HELM = ["helm", "--namespace", NAMESPACE]


@contextmanager
def installed() -> Iterator[Kubectl]:
    """The operator, installed for as long as the block runs; kubectl in its namespace."""
    kubectl = Kubectl(NAMESPACE)
    _upgrade(kubectl, {})
    yield kubectl
    run([*_HELM, "uninstall", RELEASE, "--wait"], timeout=200)


@contextmanager
def upgraded(kubectl: Kubectl, values: dict[str, Any]) -> Iterator[None]:
    """Another operator in the place of the one that is installed, for as long as the block runs,
    with further values."""
    _upgrade(kubectl, values)
    try:
        yield
    finally:
        _upgrade(kubectl, {})


def _upgrade(kubectl: Kubectl, values: dict[str, Any]) -> None:
    command = [*_HELM, "upgrade", "--install", RELEASE, str(CHART), "--create-namespace"]
    run([*command, "--values", "-", "--wait", "--timeout", "3m"],
        text=yaml.safe_dump({**VALUES, **values}), timeout=200)  # fmt: skip
    kubectl("rollout", "restart", "deployment", timeout=30)
    kubectl("rollout", "status", "deployment", "--timeout=120s", timeout=130)
