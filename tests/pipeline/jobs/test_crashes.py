"""Processes that die: the job survives a single death. If a process dies repeatedly, the row that
kills it fails if that is allowed, else the job."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import ray

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.execution import row_files
from batchinference.pipeline.ray_compat import replaces_dead_process
from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.storage.location import Location
from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.gated import TEXTS
from support.jobs.on_ray import job_document, run_job, write_lines
from support.outputs.checks import OutputFaults
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("ray")

POOL = {"replicas": {}}


def test_actor_that_replaces_no_process_finds_out_without_warnings() -> None:
    """Python shows a warning again after the filters have changed: they must not in each batch."""

    class Actor:
        def run(self) -> tuple[list[bool], list[str]]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                process = [replaces_dead_process()]
                for _ in range(3):
                    warnings.warn("once", stacklevel=1)
                    process.append(replaces_dead_process())
                return process, [str(warning.message) for warning in caught]

    actor: Any = ray.remote(num_cpus=0)(Actor)
    stored: Any = ray.get(actor.remote().run.remote())
    assert stored == ([False] * 4, ["once"])


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("exit_process", {}),
        ("Die", POOL),
        pytest.param("DieInConstructor", POOL, marks=pytest.mark.long("crash-points")),
    ],
)
def test_code_that_always_kills_its_process_fails_the_job(
    tmp_path: Path, name: str, fields: Document
) -> None:
    source = write_lines(tmp_path / "in", {"a.txt": ["text"]})
    steps = [{"name": "own", "python": {"callable": f"own_code:{name}"}, **fields}]
    job = job_document("dies", source, tmp_path / "out", steps=steps)
    run = run_job(job, task_retries=1, actor_restarts=1)
    assert run.report.state == JobState.FAILED
    message = run.report.message or ""
    assert "died" in message
    text = f"step 'own' failed on row 0 of {source}/a.txt"
    assert (text in message) == (name != "DieInConstructor")
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_code_that_does_not_load_fails_the_job_at_once(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", {"a.txt": ["text"]})
    step = {"name": "own", "python": {"callable": "own_code:FailInConstructor"}, **POOL}
    run = run_job(job_document("fails", source, tmp_path / "out", steps=[step]))
    assert (run.report.state, run.report.reason) == (JobState.FAILED, "ModelLoad")
    assert "no weights" in (run.report.message or "")
    assert (run.report.pass_number, run.report.retries) == (1, 0)


def finished(output: Path) -> list[str]:
    """Return the texts of a complete output. Its files must be exactly the files that it names."""
    assert list(OutputFaults(output).wrong_files()) == []
    return sorted(row["text"] for row in rows_of(output))


def dying(at: str, once: Path) -> type[Committer]:
    """Return a commit class that kills its process once, before it writes a path with `at`."""

    class Dying(Committer):
        def put(self, batch: RowBatch, task: int, number: int = 0) -> None:
            write = Location.write

            def die(address: Location, content: bytes) -> None:
                if at in address.path and not once.exists():
                    once.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                write(address, content)

            with patch.object(Location, "write", die):
                super().put(batch, task, number)

    return Dying


@pytest.mark.parametrize("at", ["/out/part-", "/attempts/"], ids=["data", "manifest"])
def test_write_task_killed_before_it_writes_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    source = write_lines(tmp_path / "in", {"a.txt": TEXTS[:25], "b.txt": TEXTS[25:]})
    monkeypatch.setattr(row_files, "Committer", dying(at, tmp_path / "died"))
    run = run_job(job_document("job", source, tmp_path / "out"))
    assert (tmp_path / "died").exists()
    assert (run.report.state, run.report.pass_number) == (JobState.SUCCEEDED, 1)
    assert run.counts == (39, 39, 0, 0)
    assert finished(tmp_path / "out") == sorted(TEXTS)
