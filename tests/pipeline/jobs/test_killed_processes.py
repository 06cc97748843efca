"""Processes of a job on Ray are killed (SIGKILL): the output still has each row exactly once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from unittest.mock import patch

import pytest

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.execution import row_files
from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.storage.location import Location
from batchinference.spec.report import JobState
from support.jobs.held import TEXTS
from support.jobs.on_ray import job_document, run_job, write_lines
from support.outputs.checks import OutputFaults
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("ray")


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
    assert (run.report.state, run.report.attempt) == (JobState.SUCCEEDED, 1)
    assert run.counts == (39, 39, 0, 0)
    assert finished(tmp_path / "out") == sorted(TEXTS)
