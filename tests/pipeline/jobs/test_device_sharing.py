"""Several replicas of a step share a device and a pod."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchinference.plan import Plan, plan_for_machine
from batchinference.spec import BatchInference, parse
from batchinference.spec.steps import Replicas
from support.jobs.on_ray import Run, job_document, run_job, write_lines

pytestmark = pytest.mark.usefixtures("ray")


def sharing_job(directory: Path, lines: list[str], **fields: Any) -> BatchInference:
    """Return a job whose class notes each of its replicas in the folder `replicas`."""
    source = write_lines(directory / "in", {f"{n}.txt": lines[n::8] for n in range(8)})
    replicas = directory / "replicas"
    replicas.mkdir()
    arguments = {"directory": str(replicas)}
    step = {
        "name": "own",
        "python": {"callable": "own_code:Replica", "constructorArgs": arguments},
        **fields,
    }
    return parse(job_document("sharing", source, directory / "out", steps=[step]))


def with_replicas(plan: Plan, number: int) -> Plan:
    """Return the plan, in which so many replicas start before the first batch."""
    stages = [replace(stage, replicas=Replicas(min=number, max=number)) for stage in plan.stages]
    return replace(plan, stages=tuple(stages))


def run_on_one_gpu(job: BatchInference, directory: Path, number: int) -> tuple[Run, list[str]]:
    """Run a job, and return what its replicas have noted."""
    run = run_job(job, with_replicas(plan_for_machine(job.spec, gpus=1), number))
    assert run.report.message is None
    return run, [file.read_text() for file in (directory / "replicas").iterdir()]


def test_only_the_replica_that_crashes_is_started_again(tmp_path: Path) -> None:
    lines = ["crash once", *(f"text {n}" for n in range(39))]
    job = sharing_job(tmp_path, lines, resources={"gpu": 0.25}, replicas={"max": 4}, batchSize=1)
    run, replicas = run_on_one_gpu(job, tmp_path, 4)
    assert replicas == ["0.25 of 0"] * 5
    assert run.counts == (40, 40, 0, 0)
