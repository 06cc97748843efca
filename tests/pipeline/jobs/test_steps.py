"""Steps in whole jobs: user code, filters, labels, chains, replicas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchinference.plan import plan_for_machine
from batchinference.spec import parse
from batchinference.spec.steps import Replicas
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
@pytest.mark.parametrize("pool", [{}, {"replicas": {}}], ids=["task", "pool"])
def test_function_gets_arguments_and_batch_size(tmp_path: Path, pool: Document) -> None:
    sized = {**own("BatchRows"), "batchSize": 7, **pool}
    steps = [own("to_upper", callArgs={"mark": "?"}), sized]
    run = run_job(job(tmp_path, *steps))
    assert run.counts == (40, 40, 0, 0)
    rows = rows_of(tmp_path / "out")
    assert sorted(row["text"] for row in rows) == sorted(text.upper() + "?" for text in TEXTS)
    assert max(row["rows"] for row in rows) <= 7


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
def test_two_replicas_run_concurrently(tmp_path: Path) -> None:
    (tmp_path / "meeting").mkdir()
    arguments = {"directory": str(tmp_path / "meeting"), "replicas": 2}
    source = write_lines(tmp_path / "in", {f"{n:02}.txt": [f"text {n}"] for n in range(16)})
    step = {
        "name": "meet",
        **own("WaitForReplicas", constructorArgs=arguments),
        "replicas": {"max": 2},
    }
    document = parse(job_document("two", source, tmp_path / "out", steps=[step]))
    plan = plan_for_machine(document.spec, gpus=0)
    both = tuple(replace(stage, replicas=Replicas(min=2, max=2)) for stage in plan.stages)
    run = run_job(document, replace(plan, stages=both))
    assert run.report.message is None
    assert run.counts == (16, 16, 0, 0)
    assert sorted(row["text"] for row in rows_of(tmp_path / "out")) == sorted(
        f"text {n}" for n in range(16)
    )


@pytest.mark.usefixtures("ray")
def test_report_has_the_waiting_of_replicas_and_the_capacity(tmp_path: Path) -> None:
    pool = {**own("Slow"), "batchSize": 10, "replicas": {}}
    report = run_job(job(tmp_path, own("length"), pool)).report
    assert report.steps["step-1"].wait_seconds is not None
    assert {report.steps[name].wait_seconds for name in ("read", "step-0", "write")} == {None}
    assert report.capacity is not None
    assert report.capacity.cpus >= 1
    assert report.capacity.writers >= 2
