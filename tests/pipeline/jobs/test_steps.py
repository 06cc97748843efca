"""Steps in whole jobs: user code, filters, labels, chains, replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.documents.minimal import Document
from support.jobs.on_ray import Run, job_document, run_job, without_order, write_lines
from support.outputs.rows import Row, rows_of

pytestmark = pytest.mark.usefixtures("own_code")

LINES = {
    "cats/a.txt": [f"cat {n}" for n in range(20)],
    "dogs/b.txt": [f"a dog {n}" for n in range(20)],
}
TEXTS = [line for lines in LINES.values() for line in lines]


def own(name: str, **fields: Any) -> Document:
    return {"python": {"callable": f"own_code:{name}", **fields}}


def job(directory: Path, *steps: Document, **read: Any) -> Document:
    named = [{"name": f"step-{number}", **step} for number, step in enumerate(steps)]
    source = write_lines(directory / "in", LINES)
    return job_document("steps", source, directory / "out", steps=named, read=read)


def check(directory: Path, run: Run, expected: list[Row]) -> None:
    assert run.report.message is None
    assert without_order(rows_of(directory / "out")) == without_order(expected)
    assert run.counts == (len(TEXTS), len(expected), 0, len(TEXTS) - len(expected))


@pytest.mark.usefixtures("ray")
def test_batches_with_and_without_vectors_are_joined(tmp_path: Path) -> None:
    """Ray joins the batches that an actor pool returns into one block."""
    lines = [*LINES["cats/a.txt"], *LINES["dogs/b.txt"]]
    source = write_lines(tmp_path / "in", {"a.txt": lines})
    steps = [{"name": "some", **own("VectorsOfDogs"), "batchSize": 20, "replicas": {}}]
    read = {"options": {"overrideNumBlocks": 1}}
    run = run_job(job_document("some", source, tmp_path / "out", read=read, steps=steps))
    expected = [{"text": text, "vector": [1.0] * 3 if "dog" in text else None} for text in TEXTS]
    check(tmp_path, run, expected)


@pytest.mark.usefixtures("ray")
def test_report_has_the_waiting_of_replicas_and_the_capacity(tmp_path: Path) -> None:
    pool = {**own("Slow"), "batchSize": 10, "replicas": {}}
    report = run_job(job(tmp_path, own("length"), pool)).report
    assert report.steps["step-1"].wait_seconds is not None
    assert {report.steps[name].wait_seconds for name in ("read", "step-0", "write")} == {None}
    assert report.capacity is not None
    assert report.capacity.cpus >= 1
    assert report.capacity.writers >= 2
