"""Measures how a job scales with the number of its workers, on the cluster of KUBECONFIG.

The job runs on 1, 2 and 4 CPU workers of one core each. Its step sleeps 20 ms per row, so that the
workers do not compete for the cores of a small cluster. The rate is the number of rows divided by
the seconds from the beginning of the first row to the end of the last one: it includes workers that
begin later than others, and not the start of Ray. The last lines are the rates relative to one
worker and to linear scaling. `make scaling` runs this.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench_cluster import CODE, clean, config_map, started, written_rows
from stop_signals import exit_on_signals

from support.cluster.kubectl import Kubectl
from support.cluster.object_store import ObjectStore
from support.documents.minimal import document

WORKERS = (1, 2, 4)
FILES, ROWS_PER_FILE = 64, 200
"""The job takes about a minute on four workers, so that it matters little when the pods start and
which of them gets the last file."""
LIMIT = 0.9
"""The minimum rate relative to linear scaling."""
TIMEOUT = 600


def main() -> None:
    with started("scaling") as (kubectl, store):
        rates = measure(kubectl, store)
    share = {workers: rate / rates[1] / workers for workers, rate in rates.items()}
    for workers, rate in rates.items():
        print(f"scaling {workers} workers {rate:.1f} rows/s linear={share[workers]:.3f}")
    if min(share.values()) < LIMIT:
        raise SystemExit(f"below {LIMIT} of linear scaling")


def measure(kubectl: Kubectl, store: ObjectStore) -> dict[int, float]:
    """Return the rows per second for each number of workers."""
    with tempfile.TemporaryDirectory() as directory:
        for number in range(FILES):
            lines = (f"row {number} {row}\n" for row in range(ROWS_PER_FILE))
            (Path(directory) / f"{number:02d}.txt").write_text("".join(lines))
        store.upload(Path(directory), "in")
    kubectl.apply(config_map("code", "bench_steps.py"))
    return {workers: rate(kubectl, store, workers) for workers in WORKERS}


def rate(kubectl: Kubectl, store: ObjectStore, workers: int) -> float:
    """Run the job on this many workers, and return its rows per second."""
    name = f"nap-{workers}"
    kubectl.apply(job(name, store, workers))
    kubectl.wait_complete(name, TIMEOUT)
    rows = written_rows(store, name)
    clean(kubectl)
    assert len(rows) == FILES * ROWS_PER_FILE, f"{name} wrote {len(rows)} rows"
    pods = {row["pod"] for row in rows}
    assert len(pods) == workers, f"{name} ran on {pods}"
    seconds = max(row["ended"] for row in rows) - min(row["began"] for row in rows)
    print(f"{name}: {seconds:.1f} s", flush=True)
    return len(rows) / seconds


def job(name: str, store: ObjectStore, workers: int) -> dict[str, Any]:
    return document(
        name,
        read={"format": "text", "paths": [store.uri("in")]},
        steps=[{"name": "nap", "python": {"callable": "bench_steps:nap", "method": "map"}}],
        write={"format": "parquet", "path": store.uri(f"out/{name}")},
        cluster={**CODE, "workers": {"cpu": 1, "min": workers, "max": workers}},
    )


if __name__ == "__main__":
    exit_on_signals()
    main()
