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

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import throughput
from s3_bench import HERE, ROWS, S3Bench, kill_when, parquet_files, s3_bench
from stop_signals import exit_on_signals

from support.documents.minimal import Document, document
from support.jobs.gated import committed_rows

DONE = 0.9
MOST_BYTES, MOST_TIME = 0.12, 0.15
"""Maximum shares of the bytes and of the time of the whole job that the resumed run may take."""
IMAGES = 8000
MOST_SECONDS, MOST_MEMORY = 10.0, 1024
"""Maximum seconds and MiB for finding the missing rows of a billion rows."""


def parquet() -> dict[str, bytes]:
    return parquet_files(letters=200, row_group=500)


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

    def job(self, bench: S3Bench, output: str, source: str = "in") -> Document:
        wait = {"callable": "bench_steps:wait", "callArgs": {"seconds": self.wait}}
        storage = {"endpoint": bench.relay.endpoint, "region": "us-east-1"}
        return document(
            "resume",
            read={**self.read, "paths": [f"s3://source/{source}/"], "storage": storage},
            steps=[{"name": "wait", "python": wait}, *self.steps],
            write={"format": "parquet", "path": f"s3://output/{output}"},
        )


CASES = {
    "parquet": Case("parquet", parquet, ROWS, 0.0005, {"format": "parquet"}),
    "images": Case(
        "images", images, IMAGES, 0.01,
        {"format": "images", "options": {"size": [224, 224]}},
        ({"name": "slim", "dropColumns": ["image"]},),
    ),
}  # fmt: skip


def measure(case: Case) -> bool:
    """Print the figures of a case, and return whether they are within the limits."""
    with s3_bench() as bench:
        files = case.files()
        bench.server.put("source", {f"in/{name}": content for name, content in files.items()})
        name, content = next(iter(files.items()))
        bench.server.put("source", {f"one/{name}": content})
        return compare(case, bench, sum(map(len, files.values())))


def compare(case: Case, bench: S3Bench, size: int) -> bool:
    # the first run of all is slower: the machine's file cache is cold
    start = min(seconds_of(bench, case.job(bench, f"start-{n}", "one")) for n in range(2))
    seconds = seconds_of(bench, case.job(bench, "whole"))
    read, job = bench.relay.bytes, case.job(bench, "resumed")
    kill_when(bench.job(job), lambda: committed_rows(job) >= DONE * case.rows)
    done = committed_rows(job) / case.rows
    rest, read_again = seconds_of(bench, job), bench.relay.bytes
    bytes_, time_ = read_again / size, max(0.0, rest - start) / (seconds - start)
    print(f"{case.name}: start {start:.1f} s, whole {seconds:.1f} s, "
          f"{read / 1e6:.1f} MB of {size / 1e6:.1f} MB read; "
          f"{100 * done:.1f} % done, rest {rest:.1f} s, {read_again / 1e6:.2f} MB")  # fmt: skip
    print(f"resume {case.name} bytes={bytes_:.3f} time={time_:.3f}", flush=True)
    return bytes_ <= MOST_BYTES and time_ <= MOST_TIME


def seconds_of(bench: S3Bench, job: Document) -> float:
    """Run a job to its end, and return its seconds."""
    seconds, _ = bench.run(bench.job(job))
    return seconds


def coverage() -> bool:
    """Find the missing rows of a billion rows in a separate process, print the figures, and return
    whether they are within the limits."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(HERE / "coverage_case.py"), directory]
        for action in ("write", "read"):
            done = subprocess.run([*command, action], check=True, capture_output=True, text=True)
    seconds, missing, memory = (part.split()[0] for part in done.stdout.split(", "))
    print(f"resume coverage seconds={seconds} MiB={memory} missing={missing}", flush=True)
    return float(seconds) <= MOST_SECONDS and int(memory) <= MOST_MEMORY


def main() -> None:
    failed = []
    for name in sys.argv[1:] or [*CASES, "coverage"]:
        within = coverage() if name == "coverage" else measure(CASES[name])
        failed += [] if within else [name]
    if failed:
        raise SystemExit(f"beyond the limits: {', '.join(failed)}")


if __name__ == "__main__":
    exit_on_signals()
    main()
