"""Compares our checkpoints with Ray's checkpoint and with no checkpoint, S3 to S3 on this machine.

    plain        hand-written with Ray Data, without a checkpoint
    checkpoint   the same with Ray's CheckpointConfig
    ours         the job as a BatchInference

Each run processes 200,000 rows in 100 Parquet files, in a process of its own. The sides alternate.
Runs are measured first undisturbed, then killed when 90 % of the rows are committed and run again;
the second run's bytes and requests at the input's store are counted. Results are printed as a table
and as ratios to `plain`. `make checkpoint` runs this.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from rounds import ROUNDS
from s3_bench import ROWS, S3Bench, kill_when, parquet_files, s3_bench
from stop_signals import exit_on_signals

from batchinference.plan import cpus_needed, plan_for_machine
from batchinference.spec import parse
from batchinference.spec.report import Report
from support.documents.minimal import Document, document
from support.jobs.command import Command
from support.jobs.gated import committed_rows

DONE = 0.9
LIMIT, NOISE = 1.05, 0.05
"""The maximum ratio of our time to the time of `plain`, and the tolerance for noise."""
SIDES = ("plain", "checkpoint", "ours")
TITLES = {
    "plain": "by hand, without a checkpoint",
    "checkpoint": "by hand, with CheckpointConfig",
    "ours": "BatchInference",
}


@dataclass(frozen=True)
class RunCost:
    """The cost of a run.

    `seconds` is the whole time; `working` excludes Ray's startup and shutdown. `bytes` and
    `requests` count reads of the input. `before` is the share of rows committed before the run.
    """

    seconds: float
    working: float
    bytes: int
    requests: int
    before: float = 0.0


@dataclass(frozen=True)
class Checkpoints:
    """The sides, each of which reads the input through the relay."""

    bench: S3Bench

    def run(self, side: str, output: str) -> RunCost:
        seconds, printed = self.bench.run(self.command(side, output))
        working = self.working(output) if side == "ours" else float(printed.split("=")[1])
        relay = self.bench.relay
        requests = sum("/source/rows/" in request for request in relay.requests)
        return RunCost(seconds, working, relay.bytes, requests)

    def resume(self, side: str, output: str) -> RunCost:
        """Kill a run when enough rows are committed, run it again, and return the second run."""
        enough = DONE * ROWS
        kill_when(self.command(side, output), lambda: self.committed(side, output) >= enough)
        before = self.committed(side, output) / ROWS
        return replace(self.run(side, output), before=before)

    def command(self, side: str, output: str) -> Command:
        job = self.job(output)
        if side == "ours":
            return self.bench.job(job)
        cpus = math.ceil(cpus_needed(plan_for_machine(parse(job).spec, gpus=0)))
        texts = ["s3://source/rows", f"s3://output/{output}", str(max(os.cpu_count() or 1, cpus))]
        checkpoint = [f"s3://output/{output}-checkpoint"] if side == "checkpoint" else []
        endpoint = self.bench.relay.endpoint
        arguments = ["peer_checkpoint.py", *texts, *checkpoint]
        return self.bench.script(*arguments, READ_ENDPOINT=endpoint)

    def job(self, output: str) -> Document:
        storage = {"endpoint": self.bench.relay.endpoint, "region": "us-east-1"}
        return document(
            "rows",
            read={"format": "parquet", "paths": ["s3://source/rows/"], "storage": storage},
            steps=[{"name": "score", "python": {"callable": "bench_steps:score"}}],
            write={"format": "parquet", "path": f"s3://output/{output}"},
        )

    def directory_of(self, output: str) -> Path:
        """Return the directory in which the server keeps an output."""
        return self.bench.server.directory / "output" / output

    def working(self, output: str) -> float:
        report = self.directory_of(output) / "_batchinference" / "report.json"
        return sum(Report.parse(report.read_bytes()).seconds.values())

    def committed(self, side: str, output: str) -> int:
        """Return how many rows of an output are committed."""
        if side == "ours":
            return committed_rows(self.job(output))
        files = self.directory_of(f"{output}-checkpoint").glob("*.parquet")
        return sum(_rows_in(file) for file in files if not file.name.endswith(".pending.parquet"))


@cache
def _rows_in(file: Path) -> int:
    return int(pq.read_metadata(file).num_rows)


def alternate(
    location: Callable[[str], Path],
    sides: Sequence[str],
    name: str,
    run: Callable[[str, str], RunCost],
) -> dict[str, RunCost]:
    """Run the sides alternately, check their outputs, and return the medians of each side."""
    costs = defaultdict[str, list[RunCost]](list)
    for number in range(ROUNDS):
        for side in sides:
            output = f"{name}-{side}-{number}"
            costs[side].append(run(side, output))
            print(f"{name} {number + 1}: {side} {costs[side][-1]}", flush=True)
            check(location(output))
    return {side: median(runs) for side, runs in costs.items()}


def check(output: Path) -> None:
    ids = pads.dataset(output).to_table(columns=["id"]).column("id").to_numpy()
    assert np.array_equal(np.sort(ids), np.arange(ROWS)), f"{output} does not hold each row once"


def median(runs: list[RunCost]) -> RunCost:
    columns = zip(*(astuple(run) for run in runs), strict=True)
    return RunCost(*(statistics.median(column) for column in columns))


def table_of_runs(run_costs: dict[str, RunCost], rest: dict[str, RunCost]) -> str:
    lines = ["| | seconds | of it beyond Ray's start | input read |", "| --- | --- | --- | --- |"]
    for side, cost in run_costs.items():
        lines.append(f"| {TITLES[side]}, undisturbed | {_figures(cost)} |")
    for side, cost in rest.items():
        lines.append(f"| {TITLES[side]}, {100 * cost.before:.0f} % done | {_figures(cost)} |")
    return "\n".join(lines)


def _figures(cost: RunCost) -> str:
    read = f"{cost.bytes / 1e6:.1f} MB in {cost.requests:.0f} requests"
    return f"{cost.seconds:.1f} | {cost.working:.1f} | {read}"


def main() -> None:
    """Measure all runs. Fail unless ours is within its limit and, when resumed, reads no more than
    Ray's checkpoint."""
    with s3_bench() as bench:
        files = parquet_files(letters=100)
        bench.server.put("source", {f"rows/{name}": content for name, content in files.items()})
        sides = Checkpoints(bench)
        full = alternate(sides.directory_of, SIDES, "whole", sides.run)
        rest = alternate(sides.directory_of, SIDES[1:], "resumed", sides.resume)
    print(table_of_runs(full, rest))
    ratios = {side: full[side].seconds / full["plain"].seconds for side in SIDES[1:]}
    read = {side: rest[side].bytes / full["plain"].bytes for side in SIDES[1:]}
    for side in SIDES[1:]:
        print(f"checkpoint {side} time={ratios[side]:.3f} bytes={read[side]:.3f}")
    if ratios["ours"] > LIMIT + NOISE or read["ours"] > read["checkpoint"]:
        raise SystemExit("beyond the limits")


if __name__ == "__main__":
    exit_on_signals()
    main()
