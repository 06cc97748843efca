"""Processes that die: the job survives a single death, and fails if a process dies repeatedly."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.pipeline.execution import resources, staged
from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.on_ray import job_document, run_job, write_lines
from support.outputs.rows import rows_of
from support.outputs.verify_command import verified

pytestmark = pytest.mark.usefixtures("ray")

LINES = {f"{n}.txt": [f"text {n} {m}" for m in range(5)] for n in range(6)}
TEXTS = sorted(line for lines in LINES.values() for line in lines)


POOL = {"replicas": {}}


@pytest.mark.parametrize(
    ("name", "fields"),
    [("die_once", {}), ("DieOnce", {}), ("DieOnce", POOL)],
    ids=["a task", "a task with a class", "an actor"],
)
def test_dead_process_is_replaced_and_each_row_counts_once(
    tmp_path: Path, name: str, fields: Document
) -> None:
    died = tmp_path / "died"
    step = {"callable": f"own_code:{name}", "callArgs": {"file": str(died)}}
    source = write_lines(tmp_path / "in", LINES)
    steps = [{"name": "own", "python": step, **fields}]
    run = run_job(job_document("dies", source, tmp_path / "out", steps=steps))
    assert died.exists()
    assert (run.report.state, run.counts) == (JobState.SUCCEEDED, (30, 30, 0, 0))
    assert sorted(row["text"] for row in rows_of(tmp_path / "out")) == TEXTS
    assert verified(tmp_path / "out").result == "proven"


@pytest.mark.parametrize(
    ("name", "fields", "cause"),
    [
        ("exit_process", {}, "died again and again (WorkerCrashedError)"),
        ("Die", POOL, "died again and again (Actor"),
        ("DieInConstructor", POOL, "died"),
    ],
    ids=["a task that exits", "an actor", "an actor as it is made"],
)
def test_code_that_always_kills_its_process_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fields: Document, cause: str
) -> None:
    monkeypatch.setattr(resources, "TASK_RETRIES", 1)
    monkeypatch.setattr(staged, "TASK_RETRIES", 1)
    monkeypatch.setattr(staged, "ACTOR_RESTARTS", 1)
    source = write_lines(tmp_path / "in", {"a.txt": ["text"]})
    steps = [{"name": "own", "python": {"callable": f"own_code:{name}"}, **fields}]
    job = job_document("dies", source, tmp_path / "out", steps=steps, errors={"maxPercent": 100.0})
    run = run_job(job)
    assert run.report.state == JobState.FAILED
    message = run.report.message or ""
    assert cause in message
    place = f"The process died in step 'own' on rows 0 to 0 of {source}/a.txt"
    assert (place in message) == (name != "DieInConstructor")
    assert not (tmp_path / "out" / "_SUCCESS").exists()
