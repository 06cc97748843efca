"""Measures how a job scales with the number of its workers, on the cluster of KUBECONFIG.

The job runs on 1, 2 and 4 CPU workers of one core each. Its step sleeps 20 ms per row, so that the
workers do not compete for the cores of a small cluster. The rate is the number of rows divided by
the seconds from the beginning of the first row to the end of the last one: it includes workers that
begin later than others, and not the start of Ray. The last lines are the rates relative to one
worker and to linear scaling. `make scaling` runs this.
"""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import Any

import sleep_step
from stop_signals import exit_on_signals

from support.cluster.deployment import PIPELINE_IMAGE, installed
from support.cluster.kubectl import Kubectl, eventually, run
from support.cluster.object_store import ObjectStore
from support.documents.minimal import document
from support.outputs.rows import rows_of

WORKERS = (1, 2, 4)
FILES, ROWS_PER_FILE = 64, 200
"""The job takes about a minute on four workers, so that it matters little when the pods start and
which of them gets the last file."""
LIMIT = 0.9
"""The minimum rate relative to linear scaling."""
TIMEOUT = 600


def main() -> None:
    name = f"scaling-{uuid.uuid4().hex[:6]}"
    with installed():
        run(["kubectl", "create", "namespace", name])
        try:
            rates = measure(Kubectl(name))
        finally:
            run(["kubectl", "delete", "namespace", name, "--timeout=180s"], timeout=190)
    share = {workers: rate / rates[1] / workers for workers, rate in rates.items()}
    for workers, rate in rates.items():
        print(f"scaling {workers} workers {rate:.1f} rows/s linear={share[workers]:.3f}")
    if min(share.values()) < LIMIT:
        raise SystemExit(f"below {LIMIT} of linear scaling")


def measure(kubectl: Kubectl) -> dict[int, float]:
    """Return the rows per second for each number of workers."""
    store = ObjectStore(kubectl)
    store.start(PIPELINE_IMAGE)
    with tempfile.TemporaryDirectory() as directory:
        for number in range(FILES):
            lines = (f"row {number} {row}\n" for row in range(ROWS_PER_FILE))
            (Path(directory) / f"{number:02d}.txt").write_text("".join(lines))
        store.upload(Path(directory), "in")
    code = {"sleep_step.py": Path(sleep_step.__file__).read_text()}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": code}
    )
    return {workers: rate(kubectl, store, workers) for workers in WORKERS}


def rate(kubectl: Kubectl, store: ObjectStore, workers: int) -> float:
    """Run the job on this many workers, and return its rows per second."""
    name = f"nap-{workers}"
    kubectl.apply(job(name, store, workers))
    kubectl.wait_complete(name, TIMEOUT)
    with tempfile.TemporaryDirectory() as directory:
        rows = rows_of(store.download(f"out/{name}", Path(directory) / name))
    kubectl("delete", "batchinferences,rayjobs", "--all", "--timeout=120s", timeout=130)
    eventually("all pods are gone", lambda: not kubectl.list("pods", "ray.io/node-type"), 120)
    assert len(rows) == FILES * ROWS_PER_FILE, f"{name} wrote {len(rows)} rows"
    pods = {row["pod"] for row in rows}
    assert len(pods) == workers, f"{name} ran on {pods}"
    seconds = max(row["ended"] for row in rows) - min(row["began"] for row in rows)
    print(f"{name}: {seconds:.1f} s", flush=True)
    return len(rows) / seconds


def job(name: str, store: ObjectStore, workers: int) -> dict[str, Any]:
    volume = {"name": "code", "mountPath": "/code", "configMap": {"name": "code"}}
    return document(
        name,
        read={"format": "text", "paths": [store.uri("in")]},
        steps=[{"name": "nap", "python": {"callable": "sleep_step:nap", "method": "map"}}],
        write={"format": "parquet", "path": store.uri(f"out/{name}")},
        cluster={
            "workers": {"cpu": 1, "min": workers, "max": workers},
            "volumes": [volume],
            "env": [{"name": "PYTHONPATH", "value": "/code"}],
        },
    )


if __name__ == "__main__":
    exit_on_signals()
    main()
