"""Processes of a real job that are killed (SIGKILL): each row is there once, all the same."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
import yaml

from batchinference.pipeline import table_sink
from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.manifest import counts_of_name
from batchinference.pipeline.owner import owner_of
from batchinference.pipeline.sink import Commit
from batchinference.pipeline.storage import Address
from batchinference.spec import parse
from batchinference.spec.report import JobState
from support.commands import Command, wait_until
from support.documents import Document
from support.job_runs import job_document, run_job, write_lines
from support.outputs import rows_of
from support.played_outputs import Seen

pytestmark = pytest.mark.usefixtures("ray")

TEXTS = [f"text {n}" for n in range(40)]


def finished(output: Path) -> list[str]:
    """The texts of a complete output whose files are those that it names."""
    assert list(Seen(output).wrong_files()) == []
    return sorted(row["text"] for row in rows_of(output))


def dying(at: str, once: Path) -> type[Commit]:
    """A commit whose process is killed once, before it puts a file in such a place."""

    class Dying(Commit):
        def put(self, table: pa.Table, task: int) -> None:
            write = Address.write

            def die(address: Address, content: bytes) -> None:
                if at in address.path and not once.exists():
                    once.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                write(address, content)

            with patch.object(Address, "write", die):
                super().put(table, task)

    return Dying


@pytest.mark.parametrize("at", ["/out/part-", "/attempts/"], ids=["data", "manifest"])
def test_a_writer_is_killed_before_it_puts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    source = write_lines(tmp_path / "in", {"a.txt": TEXTS[:25], "b.txt": TEXTS[25:]})
    monkeypatch.setattr(table_sink, "Commit", dying(at, tmp_path / "died"))
    run = run_job(job_document("job", source, tmp_path / "out"))
    assert (tmp_path / "died").exists()
    assert (run.report.state, run.report.attempt) == (JobState.SUCCEEDED, 1)
    assert run.counts == (40, 40, 0, 0)
    assert finished(tmp_path / "out") == sorted(TEXTS)


class Held:
    """A running job of which all rows but one are committed."""

    def __init__(self, directory: Path, own_code: Path) -> None:
        self.gate, self.output = directory / "gate", directory / "out"
        source = write_lines(directory / "in", {"a.txt": TEXTS[:25], "b.txt": TEXTS[25:]})
        write_lines(source, {"c.txt": ["hold"]})
        shutil.copy(own_code, directory / "own_code.py")
        step = {"callable": "own_code:wait_for", "callArgs": {"file": str(self.gate)}}
        steps = [{"name": "held", "python": step}]
        self.job: Document = job_document("held", source, self.output, steps=steps)
        (directory / "job.yaml").write_text(yaml.safe_dump(self.job))
        self.command = Command(["run", "job.yaml"], directory)
        self.process = self.command.start()

    def committed(self) -> int:
        layout = Layout.of(parse(self.job).spec)
        owner = owner_of(layout)
        return Attempt(layout, owner).counts().read if owner else 0

    def kill(self, processes: list[int]) -> None:
        for process in processes:
            os.kill(process, signal.SIGKILL)
        self.process.communicate()

    def kill_driver(self) -> None:
        """What it has started goes on for a moment."""
        self.kill([self.process.pid])

    def kill_all(self) -> None:
        self.kill(self.command.processes())


@pytest.fixture
def held(tmp_path: Path, own_code: Path) -> Iterator[Held]:
    held = Held(tmp_path, own_code)
    yield held
    held.gate.touch()
    if held.process.poll() is None:
        held.kill_all()


@pytest.mark.parametrize("kill", [Held.kill_driver, Held.kill_all], ids=["alone", "with all"])
def test_the_driver_is_killed_and_only_what_is_missing_is_read(
    held: Held, kill: Callable[[Held], None]
) -> None:
    wait_until(lambda: held.committed() >= 40, "rows to be written")
    kill(held)
    assert not (held.output / "_SUCCESS").exists()
    held.gate.touch()
    run = run_job(held.job)
    assert (run.report.state, run.report.attempt) == (JobState.SUCCEEDED, 2)
    assert run.counts == (41, 41, 0, 0)
    assert finished(held.output) == sorted([*TEXTS, "hold"])
    # the row that was held may have been committed late, in vain
    names = (name.split("/")[-1] for name in Seen(held.output).names())
    read = sum(found[1].read for found in map(counts_of_name, names) if found)
    assert read in (41, 42)
    wait_until(lambda: not held.command.processes(), "the job's processes to end", 180)
    assert finished(held.output) == sorted([*TEXTS, "hold"])
