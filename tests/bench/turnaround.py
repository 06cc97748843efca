"""Measures how long small jobs take on a cluster.

    complete    from `kubectl apply` to the end of a job of 5,000 rows: lines of text, an embedding
                of each one. The actor requests one GPU; on a cluster that only simulates GPUs it
                computes on the CPU. The model is a small BERT with seeded random weights, so that
                its computation does not dominate
    first-row   from `kubectl apply` to the first of 1,000 rows: a step adds the time at which each
                batch is computed, so the clocks of this machine and of the nodes must agree

Jobs read from S3 and write to S3. Compares a BatchInference with the same job as a hand-written
RayJob. The two alternate on the cluster of KUBECONFIG. `make turnaround` runs this;
`turnaround.py complete` runs one case. The last lines are the ratios of the medians.
"""

from __future__ import annotations

import pydoc_data.topics
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_cluster import CODE, clean, config_map, started, written_rows
from rayjob import ray_job
from rounds import ROUNDS
from stop_signals import exit_on_signals

from support.cluster.deployment import ROOT
from support.cluster.kubectl import Kubectl
from support.cluster.object_store import ObjectStore
from support.documents.minimal import document, model_step, python_step

WIDTH = 128
TIMEOUT = 200


@dataclass(frozen=True)
class Case:
    """A job. `upload` writes its input, and `step` makes its step. `seconds` checks the rows of a
    run that began and ended at these times, and returns what is measured. `limit` is the maximum
    ratio of our median to the peer's, with the tolerance for noise of two cores. `peer` is the
    script of the peer."""

    upload: Callable[[ObjectStore], None]
    step: Callable[[ObjectStore], dict[str, Any]]
    seconds: Callable[[list[dict[str, Any]], float, float], float]
    limit: float
    peer: str
    cluster: dict[str, Any] = field(default_factory=dict)


def upload_prose(store: ObjectStore) -> None:
    """Upload real text, one row per line, and the model."""
    topics = "\n".join(pydoc_data.topics.topics.values())
    lines = [line for line in topics.splitlines() if len(line) >= 20][:5000]
    assert len(lines) == 5000
    upload_lines(store, lines, files=4)
    with tempfile.TemporaryDirectory() as directory:
        save_model(Path(directory))
        store.upload(Path(directory), "model")


def upload_few(store: ObjectStore) -> None:
    upload_lines(store, [f"line {number}" for number in range(1000)])


def upload_lines(store: ObjectStore, lines: list[str], files: int = 1) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for number in range(files):
            text = "\n".join(lines[number::files]) + "\n"
            (Path(directory) / f"{number}.txt").write_text(text)
        store.upload(Path(directory), "in")


def save_model(directory: Path) -> None:
    """Save a BERT with two layers and the tokenizer of MiniLM."""
    subprocess.run([sys.executable, ROOT / "examples/text-embeddings/prepare.py"], check=True)
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


def embed(store: ObjectStore) -> dict[str, Any]:
    step = model_step(batchSize=64, resources={"gpu": 1})
    step["model"] |= {"source": store.uri("model"), "normalize": True}
    return step


def stamp(store: ObjectStore) -> dict[str, Any]:
    return python_step("stamp", "bench_steps:stamp")


def until_complete(rows: list[dict[str, Any]], began: float, ended: float) -> float:
    assert len(rows) == 5000, f"{len(rows)} rows"
    assert all(len(row["embedding"]) == WIDTH for row in rows)
    return ended - began


def until_first_row(rows: list[dict[str, Any]], began: float, ended: float) -> float:
    assert len(rows) == 1000, f"{len(rows)} rows"
    return min(float(row["at"]) for row in rows) - began


CASES = {
    "complete": Case(upload_prose, embed, until_complete, 1.1 + 0.15, "peer.py"),
    "first-row": Case(
        upload_few,
        stamp,
        until_first_row,
        0.95,
        "peer_first_row.py",
        {**CODE, "workers": {"cpu": 2, "max": 1}},
    ),
}


def measure(case: Case, kubectl: Kubectl, store: ObjectStore) -> dict[str, float]:
    """Return the median seconds of our job and of the peer."""
    case.upload(store)
    kubectl.apply(config_map("code", "bench_steps.py"), config_map("peer", case.peer, "peer.py"))
    runs = {"ours": ours, "peer": peer}
    seconds: dict[str, list[float]] = {who: [] for who in runs}
    for number in range(ROUNDS):
        for who, work in runs.items():
            name, began = f"{who}-{number}", time.time()
            work(case, kubectl, store, name)
            ended = time.time()
            seconds[who].append(case.seconds(written_rows(store, name), began, ended))
            print(f"round {number + 1}: {who} {seconds[who][-1]:.1f} s", flush=True)
            clean(kubectl)
    return {who: statistics.median(each) for who, each in seconds.items()}


def ours(case: Case, kubectl: Kubectl, store: ObjectStore, name: str) -> None:
    job = document(
        name,
        read={"format": "text", "paths": [store.uri("in")]},
        steps=[case.step(store)],
        write={"format": "parquet", "path": store.uri(f"out/{name}")},
        **({"cluster": case.cluster} if case.cluster else {}),
    )
    kubectl.apply(job)
    kubectl.wait_complete(name, TIMEOUT)


def peer(case: Case, kubectl: Kubectl, store: ObjectStore, name: str) -> None:
    locations = {"PEER_INPUT": "in", "PEER_MODEL": "model", "PEER_OUTPUT": f"out/{name}"}
    environment = {key: store.uri(value)[len("s3://") :] for key, value in locations.items()}
    kubectl.apply(ray_job(name, environment))
    wait = ("wait", "--for=jsonpath={.status.jobDeploymentStatus}=Complete", f"rayjob/{name}")
    kubectl(*wait, f"--timeout={TIMEOUT}s", timeout=TIMEOUT + 10)


def main() -> None:
    slow = []
    for name in sys.argv[1:] or CASES:
        with started("bench") as (kubectl, store):
            medians = measure(CASES[name], kubectl, store)
        ratio, limit = medians["ours"] / medians["peer"], CASES[name].limit
        print(f"turnaround {name} {medians} ratio={ratio:.3f} limit={limit:g}", flush=True)
        slow += [name] if ratio > limit else []
    if slow:
        raise SystemExit(f"above the limit: {', '.join(slow)}")


if __name__ == "__main__":
    exit_on_signals()
    main()
