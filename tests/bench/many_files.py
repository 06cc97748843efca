"""Measures how long a job over very many small files takes to commit its first row.

5,000 Parquet files of 20 rows are on an object store that takes 20 ms for each request. A run is
killed as soon as its first row is committed. The benchmark compares the seconds from the start of
the command with those of the same pipeline hand-written with Ray Data, and shows the requests for
input files until then. `make many-files` runs this; `many_files.py 50` uses 50 files.
"""

from __future__ import annotations

import io
import statistics
import sys
import time
from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
from rounds import ROUNDS
from s3_bench import S3Bench, kill_when, s3_bench
from stop_signals import exit_on_signals

from support.documents.minimal import Document, document
from support.jobs.gated import committed_rows
from support.servers.s3 import S3Server

LIMIT, NOISE = 1.0, 0.1
"""The maximum ratio of our time to the peer's, and by how much chance alone may exceed it."""
FILES, ROWS, LATENCY = 5000, 20, 0.02


def first_row(bench: S3Bench, side: str, output: str) -> tuple[float, int]:
    """Start a run, and kill it when its first row is committed. Return the seconds until then, and
    the number of requests for input files."""
    slow = {"AWS_ENDPOINT_URL": bench.relay.endpoint}
    peer = ("peer_many_files.py", "s3://source/many", f"s3://output/{output}")
    ours = side == "ours"
    command = bench.job(job(output), **slow) if ours else bench.script(*peer, **slow)
    rows = bench.server.directory / "output" / output
    bench.relay.requests.clear()
    began = time.monotonic()
    kill_when(command, lambda: committed_rows(job(output)) if ours else [*rows.glob("*.parquet")])
    seconds = time.monotonic() - began
    return seconds, sum("/source/many/" in request for request in [*bench.relay.requests])


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


def measure(bench: S3Bench, files: int) -> float:
    """Run both sides alternately, and return the ratio of our median time to the peer's."""
    seconds = defaultdict[str, list[float]](list)
    for number in range(ROUNDS):
        for side in ("ours", "peer"):
            last, requests = first_row(bench, side, f"{side}-{number}")
            seconds[side].append(last)
            print(f"many-files {number + 1}: {side} {last:.1f} s, "
                  f"{requests / files:.2f} requests a file", flush=True)  # fmt: skip
    ours, peer = (statistics.median(seconds[side]) for side in ("ours", "peer"))
    print(f"many-files ratio={ours / peer:.3f} ours={ours:.1f} s peer={peer:.1f} s")
    return ours / peer


def main() -> None:
    files = int(sys.argv[1]) if len(sys.argv) > 1 else FILES
    with s3_bench(LATENCY) as bench:
        put_files(bench.server, files)
        ratio = measure(bench, files)
    if ratio > LIMIT + NOISE:
        raise SystemExit(f"slower than the peer: {ratio:.3f}")


if __name__ == "__main__":
    exit_on_signals()
    main()
