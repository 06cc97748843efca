"""Jobs whose last row waits at a gate until the test opens it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.lease import read_lease
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.spec import parse
from support.documents.minimal import Document
from support.jobs.command import Command
from support.jobs.on_ray import job_document, write_lines

TEXTS = [f"text {n}" for n in range(39)]
"""The rows that a held command commits before it waits."""
HOLD = "hold"
"""The text of the row that waits."""


class Gate:
    """A file for which a step waits with each batch that has the row `hold`."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "gate"
        step = {"callable": "own_code:wait_for", "callArgs": {"file": str(self._file)}}
        self.steps: list[Document] = [{"name": "held", "python": step}]

    def open(self) -> None:
        self._file.touch()


_ENV = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
"""Ray's workers end 5 s after their cluster has, instead of 60 s."""


def committed_rows(job: Document) -> int:
    """Count the rows of a job whose manifests are written."""
    layout = Layout.of(parse(job).spec)
    lease = read_lease(layout)
    return JobPass(layout, lease).counts().read if lease is not None and lease.begun else 0


class GatedCommand:
    """`batchinference run` as a separate process."""

    def __init__(self, directory: Path, own_code: Path) -> None:
        self.output, self.gate = directory / "out", Gate(directory)
        files = {"a.txt": TEXTS[:13], "b.txt": TEXTS[13:], "c.txt": [HOLD]}
        source = write_lines(directory / "in", files)
        shutil.copy(own_code, directory / "own_code.py")
        self.job: Document = job_document("held", source, self.output, steps=self.gate.steps)
        (directory / "job.yaml").write_text(yaml.safe_dump(self.job))
        self.command = Command(["run", "job.yaml", "--report-directory", "."], directory, _ENV)
        self.process: subprocess.Popen[str] = self.command.start()

    def committed(self) -> int:
        return committed_rows(self.job)

    def end(self) -> str:
        """Wait for the end and return the printed output."""
        _, err = self.process.communicate(timeout=60)
        return err

    def kill_all(self) -> None:
        self.command.kill()
        self.process.communicate()


@contextmanager
def gated_command(directory: Path, own_code: Path) -> Iterator[GatedCommand]:
    command = GatedCommand(directory, own_code)
    try:
        yield command
    finally:
        command.gate.open()
        if command.process.poll() is None:
            command.kill_all()
