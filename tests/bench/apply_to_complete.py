"""Measures the time from `kubectl apply` to the end of a job of 5,000 rows.

Compares a BatchInference with the same job as a hand-written RayJob. The two alternate on the
cluster of KUBECONFIG. `make turnaround` runs this.

The job reads lines of text from S3, embeds each one, and writes to S3. The actor requests one GPU;
on a cluster that only simulates GPUs it computes on the CPU. The model is a small BERT with seeded
random weights, so that its computation does not dominate. The last line of the output is the ratio
of the medians.
"""

from __future__ import annotations

import pydoc_data.topics
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from rayjob import ray_job, script
from rounds import ROUNDS
from stop_signals import exit_on_signals

from support.cluster.deployment import PIPELINE_IMAGE, ROOT, installed
from support.cluster.kubectl import Kubectl, eventually, run
from support.cluster.object_store import ObjectStore
from support.documents.minimal import document, model_step
from support.outputs.rows import rows_of

ROWS = 5000
WIDTH = 128
LIMIT = 1.1
"""The maximum ratio of our median to the peer's median."""
NOISE = 0.15
"""How far a ratio may exceed the limit by chance alone, on a machine with two cores."""
TIMEOUT = 200


def main() -> None:
    subprocess.run([sys.executable, ROOT / "examples/text-embeddings/prepare.py"], check=True)
    name = f"bench-{uuid.uuid4().hex[:6]}"
    with installed():
        run(["kubectl", "create", "namespace", name])
        try:
            ours, peer = measure(Kubectl(name))
        finally:
            run(["kubectl", "delete", "namespace", name, "--timeout=180s"], timeout=190)
    ratio = ours / peer
    print(f"apply_to_complete ratio={ratio:.3f} ours={ours:.1f}s peer={peer:.1f}s")
    if ratio > LIMIT + NOISE:
        raise SystemExit(f"the ratio is above {LIMIT}, and not by chance")


def measure(kubectl: Kubectl) -> tuple[float, float]:
    """Return the median time of our job and of the peer, in seconds."""
    store = ObjectStore(kubectl)
    store.start(PIPELINE_IMAGE)
    upload(store)
    kubectl.apply(script())
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    runs: dict[str, Callable[[Kubectl, ObjectStore, str], None]] = {"ours": ours, "peer": peer}
    for number in range(ROUNDS):
        for who, work in runs.items():
            began = time.monotonic()
            work(kubectl, store, f"{who}-{number}")
            seconds[who].append(time.monotonic() - began)
            print(f"round {number + 1}: {who} {seconds[who][-1]:.1f} s", flush=True)
            clean(kubectl)
    check(store)
    return statistics.median(seconds["ours"]), statistics.median(seconds["peer"])


def upload(store: ObjectStore) -> None:
    """Upload real text, one row per line, and the model."""
    topics = "\n".join(pydoc_data.topics.topics.values())
    lines = [line for line in topics.splitlines() if len(line) >= 20][:ROWS]
    assert len(lines) == ROWS
    with tempfile.TemporaryDirectory() as directory:
        for number in range(4):
            text = "\n".join(lines[number::4]) + "\n"
            (Path(directory) / f"{number}.txt").write_text(text)
        store.upload(Path(directory), "in")
    with tempfile.TemporaryDirectory() as directory:
        save_model(Path(directory))
        store.upload(Path(directory), "model")


def save_model(directory: Path) -> None:
    """Save a BERT with two layers and the tokenizer of MiniLM."""
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(ROOT / "examples/text-embeddings/model")
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    transformers.BertModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def ours(kubectl: Kubectl, store: ObjectStore, name: str) -> None:
    step = model_step(batchSize=64, resources={"gpu": 1})
    step["model"] |= {"source": store.uri("model"), "normalize": True}
    job = document(
        name,
        read={"format": "text", "paths": [store.uri("in")]},
        steps=[step],
        write={"format": "parquet", "path": store.uri(f"out/{name}")},
    )
    kubectl.apply(job)
    kubectl.wait_complete(name, TIMEOUT)


def peer(kubectl: Kubectl, store: ObjectStore, name: str) -> None:
    places = {"PEER_INPUT": "in", "PEER_MODEL": "model", "PEER_OUTPUT": f"out/{name}"}
    kubectl.apply(
        ray_job(name, {key: store.uri(value)[len("s3://") :] for key, value in places.items()})
    )
    wait = ("wait", "--for=jsonpath={.status.jobDeploymentStatus}=Complete", f"rayjob/{name}")
    kubectl(*wait, f"--timeout={TIMEOUT}s", timeout=TIMEOUT + 10)


def clean(kubectl: Kubectl) -> None:
    """Delete all jobs and wait until their pods are gone, so that the next run is undisturbed."""
    kubectl("delete", "batchinferences,rayjobs", "--all", "--timeout=120s", timeout=130)
    eventually("all pods are gone", lambda: not kubectl.list("pods", "ray.io/node-type"), 120)


def check(store: ObjectStore) -> None:
    """Assert that every measured run wrote all rows with their embeddings."""
    with tempfile.TemporaryDirectory() as directory:
        for who in (f"{who}-{number}" for who in ("ours", "peer") for number in range(ROUNDS)):
            rows = rows_of(store.download(f"out/{who}", Path(directory) / who))
            assert len(rows) == ROWS, f"{who} wrote {len(rows)} rows"
            assert all(len(row["embedding"]) == WIDTH for row in rows)


if __name__ == "__main__":
    exit_on_signals()
    main()
