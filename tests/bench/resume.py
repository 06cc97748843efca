"""Measures the cost of resuming a job that is 90 % done, and of finding its missing rows.

    parquet    200,000 rows in 100 files, from S3 to S3
    images     8,000 JPEGs of 400 x 300 pixels, from S3 to S3
    coverage   the manifests of 1 billion rows, on disk

A job is run once undisturbed. A second run is killed with all of its processes as soon as 90 % of
its rows are committed, and then the same command is run again. The benchmark compares the bytes
read from the input's store, and the time from start to end, less the time of the same job over a
single file. The step waits for each row as long as a small model would compute, so that other load
on the machine has little effect. `make resume` runs this; `resume.py parquet` runs one case.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import throughput
import yaml
from stop_signals import exit_on_signals

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import read_lease
from batchinference.spec import parse
from support.documents.minimal import Document, document
from support.jobs.command import Command, wait_until
from support.servers.byte_counting_proxy import Relay, counted
from support.servers.s3 import S3Server, s3_server

HERE = Path(__file__).parent
DONE = 0.9
MOST_BYTES, MOST_TIME = 0.12, 0.15
"""Maximum shares of the bytes and of the time of the whole job that the resumed run may take."""
ROWS, FILES = 200_000, 100
IMAGES = 8000
MOST_SECONDS, MOST_MEMORY = 10.0, 1024
"""Maximum seconds and MiB for finding the missing rows of a billion rows."""


def parquet() -> dict[str, bytes]:
    """Return Parquet files of numbers and texts that do not compress."""
    generator = np.random.default_rng(0)
    size, files = ROWS // FILES, {}
    for number in range(FILES):
        texts = [generator.bytes(100).hex() for _ in range(size)]
        table = pa.table({"id": np.arange(number * size, (number + 1) * size), "text": texts})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, row_group_size=size // 4)
        files[f"{number:03d}.parquet"] = buffer.getvalue()
    return files


def images() -> dict[str, bytes]:
    """Return JPEG files that are crops of real photographs."""
    with tempfile.TemporaryDirectory() as directory:
        throughput.images(Path(directory), IMAGES)
        return {file.name: file.read_bytes() for file in Path(directory).iterdir()}


@dataclass(frozen=True)
class Case:
    """A job, the number of its input rows, and the seconds that its step waits for each row."""

    name: str
    files: Callable[[], dict[str, bytes]]
    rows: int
    wait: float
    read: Document
    steps: tuple[Document, ...] = ()


CASES = {
    "parquet": Case("parquet", parquet, ROWS, 0.0005, {"format": "parquet"}),
    "images": Case(
        "images", images, IMAGES, 0.01,
        {"format": "images", "options": {"size": [224, 224]}},
        ({"name": "slim", "dropColumns": ["image"]},),
    ),
}  # fmt: skip


@dataclass
class Bench:
    """A case on an S3 server, and the relay through which runs read the input."""

    case: Case
    server: S3Server
    relay: Relay
    directory: Path

    def job(self, output: str, source: str = "in") -> Document:
        wait = {"callable": "bench_steps:wait", "callArgs": {"seconds": self.case.wait}}
        storage = {"endpoint": self.relay.endpoint, "region": "us-east-1"}
        return document(
            "resume",
            read={**self.case.read, "paths": [f"s3://input/{source}/"], "storage": storage},
            steps=[{"name": "wait", "python": wait}, *self.case.steps],
            write={"format": "parquet", "path": f"s3://output/{output}"},
        )

    def command(self, job: Document) -> Command:
        (self.directory / "job.yaml").write_text(yaml.safe_dump(job))
        path = os.pathsep.join([str(HERE), *sys.path])
        return Command(["run", "job.yaml"], self.directory, {**self.env, "PYTHONPATH": path})

    @property
    def env(self) -> dict[str, str]:
        return self.server.environment

    def run(self, job: Document) -> tuple[float, int]:
        """Run a job to its end. Return its seconds and the bytes read from the input's store."""
        before, began = self.relay.bytes, time.monotonic()
        ended = self.command(job).run(timeout=900)
        if ended.returncode:
            raise SystemExit(f"the job ended with {ended.returncode}: {ended.stderr[-3000:]}")
        return time.monotonic() - began, self.relay.bytes - before

    def run_in_part(self, job: Document) -> float:
        """Kill a run when enough rows are committed. Return the share of committed rows."""
        command = self.command(job)
        with command.start():
            wait_until(lambda: self.committed(job) >= DONE * self.case.rows, "rows", 900)
            for process in command.processes():
                os.kill(process, signal.SIGKILL)
        wait_until(lambda: not command.processes(), "the run's processes to end")
        return self.committed(job) / self.case.rows

    def committed(self, job: Document) -> int:
        layout = Layout.of(parse(job).spec)
        owner = read_lease(layout)
        return Attempt(layout, owner).counts().read if owner and owner.begun else 0


def measure(case: Case, directory: Path) -> bool:
    """Print the figures of a case, and return whether they are within the limits."""
    (directory / "buckets").mkdir()
    with s3_server(directory / "buckets") as server, counted(server.endpoint) as relay:
        os.environ.update(server.environment)
        for bucket in ("input", "output"):
            server.client().create_bucket(Bucket=bucket)
        files = case.files()
        server.put("input", {f"in/{name}": content for name, content in files.items()})
        name, content = next(iter(files.items()))
        server.put("input", {f"one/{name}": content})
        return compare(Bench(case, server, relay, directory), sum(map(len, files.values())))


def compare(bench: Bench, size: int) -> bool:
    # the first run of all is slower: the machine's file cache is cold
    start = min(bench.run(bench.job(f"start-{n}", "one"))[0] for n in range(2))
    whole, read = bench.run(bench.job("whole"))
    job = bench.job("resumed")
    done = bench.run_in_part(job)
    rest, read_again = bench.run(job)
    bytes_, time_ = read_again / size, max(0.0, rest - start) / (whole - start)
    print(f"{bench.case.name}: start {start:.1f} s, whole {whole:.1f} s, "
          f"{read / 1e6:.1f} MB of {size / 1e6:.1f} MB read; "
          f"{100 * done:.1f} % done, rest {rest:.1f} s, {read_again / 1e6:.2f} MB")  # fmt: skip
    print(f"resume {bench.case.name} bytes={bytes_:.3f} time={time_:.3f}", flush=True)
    return bytes_ <= MOST_BYTES and time_ <= MOST_TIME


def coverage(directory: Path) -> bool:
    """Find the missing rows of a billion rows in a separate process, print the figures, and return
    whether they are within the limits."""
    command = [sys.executable, str(HERE / "coverage_case.py"), str(directory)]
    for action in ("write", "read"):
        done = subprocess.run([*command, action], check=True, capture_output=True, text=True)
    seconds, missing, memory = (part.split()[0] for part in done.stdout.split(", "))
    print(f"resume coverage seconds={seconds} MiB={memory} missing={missing}", flush=True)
    return float(seconds) <= MOST_SECONDS and int(memory) <= MOST_MEMORY


def main() -> None:
    failed = []
    for name in sys.argv[1:] or [*CASES, "coverage"]:
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            within = coverage(place) if name == "coverage" else measure(CASES[name], place)
        failed += [] if within else [name]
    if failed:
        raise SystemExit(f"beyond the limits: {', '.join(failed)}")


if __name__ == "__main__":
    exit_on_signals()
    main()
