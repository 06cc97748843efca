"""What the benchmarks on the cluster of KUBECONFIG share."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.cluster.deployment import PIPELINE_IMAGE, installed
from support.cluster.kubectl import Kubectl, eventually, run
from support.cluster.object_store import ObjectStore
from support.outputs.rows import rows_of

HERE = Path(__file__).parent
CODE = {
    "volumes": [{"name": "code", "mountPath": "/code", "configMap": {"name": "code"}}],
    "env": [{"name": "PYTHONPATH", "value": "/code"}],
}
"""The fields of `cluster` of a job that imports the files of the ConfigMap `code`."""


@contextmanager
def started(name: str) -> Iterator[tuple[Kubectl, ObjectStore]]:
    """Install the operator, and start an object store in a new namespace."""
    namespace = f"{name}-{uuid.uuid4().hex[:6]}"
    with installed():
        run(["kubectl", "create", "namespace", namespace])
        try:
            kubectl = Kubectl(namespace)
            store = ObjectStore(kubectl)
            store.start(PIPELINE_IMAGE)
            yield kubectl, store
        finally:
            run(["kubectl", "delete", "namespace", namespace, "--timeout=180s"], timeout=190)


def config_map(name: str, file: str, key: str = "") -> dict[str, Any]:
    """Return the ConfigMap with a file of this directory."""
    data = {key or file: (HERE / file).read_text()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def written_rows(store: ObjectStore, output: str) -> list[dict[str, Any]]:
    """Return the rows of an output."""
    with tempfile.TemporaryDirectory() as directory:
        return rows_of(store.download(f"out/{output}", Path(directory) / output))


def clean(kubectl: Kubectl) -> None:
    """Delete all jobs and wait until their pods are gone, so that the next run is undisturbed."""
    kubectl("delete", "batchinferences,rayjobs", "--all", "--timeout=120s", timeout=130)
    eventually("all pods are gone", lambda: not kubectl.list("pods", "ray.io/node-type"), 120)
