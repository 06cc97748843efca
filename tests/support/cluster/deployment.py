"""Installs the operator on the cluster of KUBECONFIG with Helm, as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batchinference.pipeline.runtimes.device import SIMULATED
from support.cluster.kubectl import Kubectl, run
from support.cluster.object_store import JOB_ENVIRONMENT
from support.engines import missing, program
from support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "batch-inference-operator"
RELEASE = "batchinference"
NAMESPACE = os.environ.get("NAMESPACE", "batchinference-system")
REGISTRY = os.environ.get("REGISTRY", "localhost:5000")
TAG = os.environ.get("TAG", "dev")
PIPELINE_IMAGE = f"{REGISTRY}/batchinference/pipeline:{TAG}"
CUSTOM_STEP_IMAGE = f"{REGISTRY}/batchinference/custom-step:{TAG}"

VALUES: dict[str, Any] = {
    # a node may have cached an old image with the same tag
    "image": {
        "repository": f"{REGISTRY}/batchinference/operator",
        "tag": TAG,
        "pullPolicy": "Always",
    },
    "defaults": {
        "image": PIPELINE_IMAGE,
        "imagePullPolicy": "Always",
        # test nodes are small: pods request little and may use more
        "requests": {"cpu": 0.1, "memory": "256Mi"},
        # test nodes may report GPUs that they do not have
        "env": [*JOB_ENVIRONMENT, {"name": SIMULATED, "value": "1"}],
    },
}


PRICES = {"currency": "EUR", "cpuHour": "4", "deviceHour": "25"}
"""High, because the pods request little. Older charts have no prices."""


def require_cluster() -> None:
    """Skip without a cluster with KubeRay."""
    program("kubectl", "https://kubernetes.io/docs/tasks/tools/")
    program("helm", "https://helm.sh/docs/intro/install/")
    command = ["kubectl", "get", "crd", "rayjobs.ray.io", "--request-timeout=10s"]
    value = subprocess.run(command, capture_output=True, text=True, check=False)
    if value.returncode != 0:
        missing("a cluster with KubeRay", f"`make kind-up images`, set KUBECONFIG ({value.stderr})")


_HELM = ["helm", "--namespace", NAMESPACE]


@contextmanager
def installed() -> Iterator[Kubectl]:
    """Install the operator while the block runs; yield kubectl in its namespace."""
    install({})
    yield Kubectl(NAMESPACE)
    uninstall()


@contextmanager
def upgraded(values: dict[str, Any]) -> Iterator[None]:
    """Upgrade the operator with additional values while the block runs."""
    install(values)
    try:
        yield
    finally:
        install({})


@contextmanager
def rolled_back(values: dict[str, Any]) -> Iterator[None]:
    """Upgrade the operator with additional values while the block runs, then roll it back."""
    before = revision()
    install(values)
    try:
        yield
    finally:
        _until_ready("rollback", RELEASE, str(before))


@contextmanager
def uninstalled() -> Iterator[None]:
    """Uninstall the operator while the block runs, then install it again."""
    try:
        uninstall()
        yield
    finally:
        install({})


def revision() -> int:
    """Return the number of the latest revision of the release."""
    history = run([*_HELM, "history", RELEASE, "--max", "1", "--output", "json"])
    (latest,) = json.loads(history)
    return int(latest["revision"])


def helm_test() -> str:
    """Run the tests of the release and return Helm's output. Raises if they fail."""
    timeout = scaled(120)
    return run([*_HELM, "test", RELEASE, "--timeout", f"{timeout:.0f}s"],
               timeout=timeout + 10)  # fmt: skip


def install(values: dict[str, Any], chart: Path = CHART) -> None:
    """Install or upgrade the operator; its pod is always replaced.

    The values are JSON: in YAML, Helm would read the tag 0284584 as a number.
    """
    fresh: dict[str, Any] = {"podAnnotations": {"installed": uuid.uuid4().hex}}
    if chart == CHART:
        fresh["prices"] = PRICES
    _until_ready(
        "upgrade", "--install", RELEASE, str(chart), "--create-namespace", "--values", "-",
        text=json.dumps({**VALUES, **fresh, **values}),
    )  # fmt: skip


def _until_ready(*arguments: str, text: str | None = None) -> None:
    """Call Helm, and wait until the operator is ready."""
    timeout = scaled(240)
    run([*_HELM, *arguments, "--wait", "--timeout", f"{timeout:.0f}s"],
        text=text, timeout=timeout + 10)  # fmt: skip


def uninstall() -> None:
    run([*_HELM, "uninstall", RELEASE, "--wait"], timeout=scaled(200))
