"""Measures how long a job over very many small files takes to commit its first row.

5,000 Parquet files of 20 rows are on an object store that takes 20 ms for each request. A run is
killed as soon as its first row is committed. The benchmark compares the seconds from the start of
the command with those of the same pipeline hand-written with Ray Data, and shows the requests for
input files until then. `make many-files` runs this; `many_files.py 50` uses 50 files.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from rounds import ROUNDS
from stop_signals import exit_on_signals

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import read_lease
from batchinference.spec import parse
from support.documents.minimal import Document, document
from support.jobs.command import PROGRAM, Command, wait_until
from support.servers.byte_counting_proxy import Relay, counted
from support.servers.s3 import S3Server, s3_server

HERE = Path(__file__).parent
LIMIT, NOISE = 1.0, 0.1
"""The maximum ratio of our time to the peer's, and by how much chance alone may exceed it."""
FILES, ROWS, LATENCY = 5000, 20, 0.02
PATIENCE = 600


@dataclass(frozen=True)
class Bench:
    """An object store with the input, and the slow relay through which runs use it."""

    server: S3Server
    relay: Relay
    directory: Path

    def first_row(self, side: str, output: str) -> tuple[float, int]:
        """Start a run, and kill it when its first row is committed. Return the seconds until then,
        and the number of requests for input files."""
        command = self.command(side, output)
        self.relay.requests.clear()
        began = time.monotonic()
        with command.start() as process:
            wait_until(
                lambda: self.committed(side, output) or process.poll() is not None, "rows", PATIENCE
            )
            seconds = time.monotonic() - began
            requests = sum("/source/many/" in request for request in list(self.relay.requests))
            command.kill()
            _, stderr = process.communicate()
        if not self.committed(side, output):
            raise SystemExit(f"{side} ended without a row: {stderr[-3000:]}")
        return seconds, requests

    def command(self, side: str, output: str) -> Command:
        env = {
            **self.server.environment,
            "AWS_ENDPOINT_URL": self.relay.endpoint,
            "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
        }
        if side == "ours":
            (self.directory / "job.yaml").write_text(yaml.safe_dump(job(output)))
            return Command(["run", "job.yaml"], self.directory, env, PROGRAM)
        script = str(HERE / "peer_many_files.py")
        places = ["s3://source/many", f"s3://output/{output}"]
        return Command([script, *places], self.directory, env, Path(sys.executable))

    def committed(self, side: str, output: str) -> bool:
        if side == "ours":
            layout = Layout.of(parse(job(output)).spec)
            owner = read_lease(layout)
            return bool(owner and owner.begun and Attempt(layout, owner).counts().read)
        return any((self.server.directory / "output" / output).glob("*.parquet"))


def job(output: str) -> Document:
    return document(
        "many-files",
        read={"format": "parquet", "paths": ["s3://source/many/"]},
        steps=[{"name": "distance", "python": {"callable": "bench_steps:distance"}}],
        write={"format": "parquet", "path": f"s3://output/{output}"},
    )


def put_files(server: S3Server, files: int) -> None:
    """Store equal files directly in the directory of the server."""
    numbers = [number / ROWS for number in range(ROWS)]
    content = io.BytesIO()
    pq.write_table(pa.table({"x": numbers, "y": numbers}), content)
    folder = server.directory / "source" / "many"
    folder.mkdir()
    for number in range(files):
        (folder / f"{number:05d}.parquet").write_bytes(content.getvalue())


def measure(bench: Bench, files: int) -> float:
    """Run both sides alternately, and return the ratio of our median time to the peer's."""
    seconds = defaultdict(list)
    for number in range(ROUNDS):
        for side in ("ours", "peer"):
            taken, requests = bench.first_row(side, f"{side}-{number}")
            seconds[side].append(taken)
            print(f"many-files {number + 1}: {side} {taken:.1f} s, "
                  f"{requests / files:.2f} requests a file", flush=True)  # fmt: skip
    ours, peer = (statistics.median(seconds[side]) for side in ("ours", "peer"))
    print(f"many-files ratio={ours / peer:.3f} ours={ours:.1f} s peer={peer:.1f} s")
    return ours / peer


def main() -> None:
    files = int(sys.argv[1]) if len(sys.argv) > 1 else FILES
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "buckets").mkdir()
        with (
            s3_server(directory / "buckets") as server,
            counted(server.endpoint, LATENCY) as relay,
        ):
            os.environ.update(server.environment)
            for bucket in ("source", "output"):
                server.client().create_bucket(Bucket=bucket)
            put_files(server, files)
            ratio = measure(Bench(server, relay, directory), files)
    if ratio > LIMIT + NOISE:
        raise SystemExit(f"slower than the peer: {ratio:.3f}")


if __name__ == "__main__":
    exit_on_signals()
    main()
