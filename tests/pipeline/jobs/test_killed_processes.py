"""Processes of a job on Ray are killed (SIGKILL): the output still has each row exactly once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.manifest import parse_manifest_name
from batchinference.pipeline.execution import row_files
from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.storage.location import Location
from batchinference.spec.report import JobState
from support.jobs.command import wait_until
from support.jobs.held import HOLD, TEXTS, HeldCommand, held_command
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


@pytest.mark.long("crash-points")
@pytest.mark.parametrize(
    "kill", [HeldCommand.kill_driver, HeldCommand.kill_all], ids=["driver", "all processes"]
)
def test_resume_after_a_killed_driver_reads_missing_rows_only(
    tmp_path: Path, own_code: Path, kill: Callable[[HeldCommand], None]
) -> None:
    with held_command(tmp_path, own_code) as held:
        wait_until(lambda: held.committed() >= len(TEXTS), "rows to be committed")
        kill(held)
        assert not (held.output / "_SUCCESS").exists()
        held.gate.open()
        run = run_job(held.job)
        assert (run.report.state, run.report.attempt) == (JobState.SUCCEEDED, 2)
        assert run.counts == (40, 40, 0, 0)
        assert finished(held.output) == sorted([*TEXTS, HOLD])
        # the blocked row may have been committed too late, so that the commit does not count
        names = (name.split("/")[-1] for name in OutputFaults(held.output).names())
        read = sum(found[1].read for found in map(parse_manifest_name, names) if found)
        assert read in (40, 41)
        wait_until(lambda: not held.command.processes(b"ray::read"), "the held task to end")
        assert finished(held.output) == sorted([*TEXTS, HOLD])
