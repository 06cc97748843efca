"""Measures the time from `kubectl apply` to the first row of a small job.

Compares a BatchInference with the same job as a hand-written RayJob. They alternate on the cluster
of KUBECONFIG. `make turnaround` runs this.

The job reads lines of text from S3, adds the time at which each batch is computed, and writes to
S3. The first row is the earliest of these times, so the clocks of this machine and of the nodes
must agree.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayjob import ray_job
from rounds import ROUNDS
from stop_signals import exit_on_signals

from support.cluster.deployment import PIPELINE_IMAGE, install, uninstall
from support.cluster.kubectl import Kubectl, run
from support.cluster.object_store import ObjectStore
from support.documents.minimal import document, python_step
from support.outputs.rows import rows_of

ROWS = 1000
LIMIT = 0.95
"""The maximum ratio of a job to the hand-written RayJob."""
TIMEOUT = 200
HERE = Path(__file__).parent
CODE = {"name": "code", "mountPath": "/code", "configMap": {"name": "code"}}
CLUSTER = {
    "volumes": [CODE],
    "env": [{"name": "PYTHONPATH", "value": "/code"}],
    "workers": {"cpu": 2, "max": 1},
}
Run = Callable[[Kubectl, ObjectStore, str], None]


def main() -> None:
    name = f"bench-{uuid.uuid4().hex[:6]}"
    run(["kubectl", "create", "namespace", name])
    try:
        install({})
        seconds = measure(Kubectl(name))
    finally:
        uninstall()
        run(["kubectl", "delete", "namespace", name, "--timeout=180s"], timeout=190)
    own, peer = (statistics.median(seconds[who]) for who in ("own", "peer"))
    print(f"apply_to_first_row own={own:.1f}s peer={peer:.1f}s")
    result = f"own / peer is {own / peer:.2f}, limit {LIMIT}"
    if own / peer > LIMIT:
        raise SystemExit(f"FAIL: {result}")
    print(f"PASS: {result}")


def measure(kubectl: Kubectl) -> dict[str, list[float]]:
    """Return the seconds to the first row of each run."""
    store = ObjectStore(kubectl)
    store.start(PIPELINE_IMAGE)
    with tempfile.TemporaryDirectory() as directory:
        lines = "".join(f"line {number}\n" for number in range(ROWS))
        (Path(directory) / "lines.txt").write_text(lines)
        store.upload(Path(directory), "in")
    kubectl.apply(
        config_map("code", "first_row_step.py"), config_map("peer", "peer_first_row.py", "peer.py")
    )
    runs: dict[str, Run] = {"own": own, "peer": peer}
    seconds: dict[str, list[float]] = {who: [] for who in runs}
    for number in range(ROUNDS):
        for who, work in runs.items():
            name, began = f"{who}-{number}", time.time()
            work(kubectl, store, name)
            seconds[who].append(first_row(store, name) - began)
            print(f"round {number + 1}: {who} {seconds[who][-1]:.1f} s", flush=True)
            kubectl("delete", "batchinferences,rayjobs", "--all", "--timeout=120s", timeout=130)
    return seconds


def config_map(name: str, file: str, key: str = "") -> dict[str, Any]:
    """Return the ConfigMap with a file of this directory."""
    data = {key or file: (HERE / file).read_text()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def own(kubectl: Kubectl, store: ObjectStore, name: str) -> None:
    body = document(
        name,
        read={"format": "text", "paths": [store.uri("in")]},
        steps=[python_step("stamp", "first_row_step:stamp")],
        write={"format": "parquet", "path": store.uri(f"out/{name}")},
        cluster=CLUSTER,
    )
    kubectl.apply(body)
    kubectl.wait_complete(name, TIMEOUT)


def peer(kubectl: Kubectl, store: ObjectStore, name: str) -> None:
    places = {"PEER_INPUT": "in", "PEER_OUTPUT": f"out/{name}"}
    environment = {key: store.uri(value)[len("s3://") :] for key, value in places.items()}
    kubectl.apply(ray_job(name, environment))
    wait = ("wait", "--for=jsonpath={.status.jobDeploymentStatus}=Complete", f"rayjob/{name}")
    kubectl(*wait, f"--timeout={TIMEOUT}s", timeout=TIMEOUT + 10)


def first_row(store: ObjectStore, name: str) -> float:
    """Return the time at which the first row was computed."""
    with tempfile.TemporaryDirectory() as directory:
        rows = rows_of(store.download(f"out/{name}", Path(directory)))
    assert len(rows) == ROWS, f"{name} wrote {len(rows)} rows"
    return min(float(row["at"]) for row in rows)


if __name__ == "__main__":
    exit_on_signals()
    main()
