"""Programs whose input and output are on an S3 server of this machine, and their costs."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from support.documents.minimal import Document
from support.jobs.command import PROGRAM, Command, wait_until
from support.servers.byte_counting_proxy import Relay, counted
from support.servers.s3 import S3Server, s3_server

HERE = Path(__file__).parent
ROWS, FILES = 200_000, 100
PATIENCE = 900


@dataclass(frozen=True)
class S3Bench:
    """An S3 server with the buckets `source` and `output`, and a relay to it, which counts the
    bytes and requests of the programs that use it instead of the server."""

    server: S3Server
    relay: Relay
    directory: Path

    def job(self, job: Document, **env: str) -> Command:
        (self.directory / "job.yaml").write_text(yaml.safe_dump(job))
        return self._command(PROGRAM, ["run", "job.yaml"], env)

    def script(self, *arguments: str, **env: str) -> Command:
        """Return the command of a script of this directory."""
        name, *others = arguments
        return self._command(Path(sys.executable), [str(HERE / name), *others], env)

    def _command(self, program: Path, arguments: list[str], env: dict[str, str]) -> Command:
        path = os.pathsep.join([str(HERE), *sys.path])
        env = {**self.server.environment, "PYTHONPATH": path, **env}
        return Command(arguments, self.directory, env, program)

    def run(self, command: Command) -> tuple[float, str]:
        """Run a program. Return its seconds and what it printed. The relay counts what is read."""
        self.relay.bytes = 0
        self.relay.requests.clear()
        began = time.monotonic()
        ended = command.run(timeout=PATIENCE)
        if ended.returncode:
            summary = f"{ended.stdout[-2000:]} {ended.stderr[-2000:]}"
            raise SystemExit(f"{command.arguments} ended with {ended.returncode}: {summary}")
        return time.monotonic() - began, ended.stdout


def kill_when(command: Command, condition: Callable[[], object]) -> None:
    """Start a program, and kill all of its processes when a condition holds."""
    with command.start() as process:
        wait_until(lambda: condition() or process.poll() is not None, "rows", PATIENCE)
        command.kill()
        _, errors = process.communicate()
    if not condition():
        raise SystemExit(f"{command.arguments} ended too soon: {errors[-3000:]}")


@contextmanager
def s3_bench(latency: float = 0.0) -> Iterator[S3Bench]:
    """Run an S3 server. The relay delays each request by `latency` seconds."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "buckets").mkdir()
        with s3_server(directory / "buckets") as server, counted(server.endpoint, latency) as relay:
            os.environ.update(server.environment)
            for bucket in ("source", "output"):
                server.client().create_bucket(Bucket=bucket)
            yield S3Bench(server, relay, directory)


def parquet_files(letters: int, row_group: int | None = None) -> dict[str, bytes]:
    """Return files of numbers, and of texts that do not compress."""
    generator = np.random.default_rng(0)
    size, files = ROWS // FILES, {}
    for number in range(FILES):
        table = pa.table(
            {
                "id": np.arange(number * size, (number + 1) * size),
                "x": generator.random(size),
                "y": generator.random(size),
                "text": [generator.bytes(letters // 2).hex() for _ in range(size)],
            }
        )
        buffer = io.BytesIO()
        pq.write_table(table, buffer, row_group_size=row_group)
        files[f"{number:03d}.parquet"] = buffer.getvalue()
    return files
