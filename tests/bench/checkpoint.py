"""Compares our checkpoints with Ray's checkpoint and with no checkpoint, S3 to S3 on this machine.

    plain        hand-written with Ray Data, without a checkpoint
    checkpoint   the same with Ray's CheckpointConfig
    ours         the job as a BatchInference

The part `runs` processes 200,000 rows in 100 Parquet files. The sides alternate, and each run is a
process of its own. Runs are measured first undisturbed, then killed when 90 % of the rows are
committed and run again; the second run's bytes and requests at the input's store are counted. The
part `faults` injects the faults of fault_scenarios.py into Ray's checkpoint and ours. Results are
printed as tables and as ratios to `plain`. `make checkpoint` runs both parts; `checkpoint.py runs`
and `checkpoint.py faults` run one.
"""

from __future__ import annotations

import io
import math
import os
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import yaml
from fault_scenarios import SCENARIOS, Faults, Outcome, put_input
from rounds import ROUNDS
from stop_signals import exit_on_signals

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import read_lease
from batchinference.plan import cpus_needed, plan_for_machine
from batchinference.spec import parse
from batchinference.spec.report import Report
from support.documents.minimal import Document, document
from support.jobs.command import PROGRAM, Command, wait_until
from support.servers.byte_counting_proxy import Relay, counted
from support.servers.s3 import S3Server, s3_server

HERE = Path(__file__).parent
ROWS, FILES = 200_000, 100
DONE = 0.9
LIMIT, NOISE = 1.05, 0.05
"""The maximum ratio of our time to the time of `plain`, and the tolerance for noise."""
SIDES = ("plain", "checkpoint", "ours")
TITLES = {
    "plain": "by hand, without a checkpoint",
    "checkpoint": "by hand, with CheckpointConfig",
    "ours": "BatchInference",
}
PATIENCE = 900


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
class Bench:
    """An S3 server with the input, and the relay through which runs read the input."""

    server: S3Server
    relay: Relay
    log: Path
    directory: Path

    def run(self, side: str, output: str) -> RunCost:
        bytes_, requests, began = self.relay.bytes, self.requests(), time.monotonic()
        ended = self.command(side, output).run(timeout=PATIENCE)
        seconds = time.monotonic() - began
        if ended.returncode:
            summary = f"{ended.stdout[-2000:]} {ended.stderr[-2000:]}"
            raise SystemExit(f"{side} ended with {ended.returncode}: {summary}")
        working = self.working(output) if side == "ours" else float(ended.stdout.split("=")[1])
        read = self.relay.bytes - bytes_, self.requests() - requests
        return RunCost(seconds, working, *read)

    def resume(self, side: str, output: str) -> RunCost:
        """Kill a run when enough rows are committed, run it again, and return the second run."""
        command = self.command(side, output)
        with command.start():
            enough = DONE * ROWS
            wait_until(lambda: self.committed(side, output) >= enough, "rows", PATIENCE)
            command.kill()
        before = self.committed(side, output) / ROWS
        return replace(self.run(side, output), before=before)

    def command(self, side: str, output: str) -> Command:
        env = {
            **self.server.environment,
            "READ_ENDPOINT": self.relay.endpoint,
            "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
        }
        job = self.job(output)
        if side == "ours":
            (self.directory / "job.yaml").write_text(yaml.safe_dump(job))
            return Command(["run", "job.yaml"], self.directory, env, PROGRAM)
        cpus = math.ceil(cpus_needed(plan_for_machine(parse(job).spec, gpus=0)))
        places = ["s3://source/rows", f"s3://output/{output}", str(max(os.cpu_count() or 1, cpus))]
        checkpoint = [f"s3://output/{output}-checkpoint"] if side == "checkpoint" else []
        script = str(HERE / "peer_checkpoint.py")
        return Command([script, *places, *checkpoint], self.directory, env, Path(sys.executable))

    def job(self, output: str) -> Document:
        storage = {"endpoint": self.relay.endpoint, "region": "us-east-1"}
        return document(
            "rows",
            read={"format": "parquet", "paths": ["s3://source/rows/"], "storage": storage},
            steps=[{"name": "score", "python": {"callable": "bench_steps:score"}}],
            write={"format": "parquet", "path": f"s3://output/{output}"},
        )

    def place(self, output: str) -> Path:
        """Return the directory in which the server keeps an output."""
        return self.server.directory / "output" / output

    def working(self, output: str) -> float:
        report = self.place(output) / "_batchinference" / "report.json"
        return sum(Report.parse(report.read_bytes()).seconds.values())

    def requests(self) -> int:
        """Return the number of requests for input files so far."""
        lines = self.log.read_text().splitlines()
        return sum(bool(re.search(r"s3_(Get|Head)Object rows/", line)) for line in lines)

    def committed(self, side: str, output: str) -> int:
        """Return how many rows of an output are committed."""
        if side == "ours":
            layout = Layout.of(parse(self.job(output)).spec)
            owner = read_lease(layout)
            return Attempt(layout, owner).counts().read if owner and owner.begun else 0
        files = self.place(f"{output}-checkpoint").glob("*.parquet")
        return sum(_rows_in(file) for file in files if not file.name.endswith(".pending.parquet"))


@cache
def _rows_in(file: Path) -> int:
    return int(pq.read_metadata(file).num_rows)


def put_rows(server: S3Server) -> None:
    """Upload numbers, and texts that do not compress, to source/rows."""
    generator = np.random.default_rng(0)
    size = ROWS // FILES
    for number in range(FILES):
        table = pa.table(
            {
                "id": np.arange(number * size, (number + 1) * size),
                "x": generator.random(size),
                "y": generator.random(size),
                "text": [generator.bytes(50).hex() for _ in range(size)],
            }
        )
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        server.put("source", {f"rows/{number:03d}.parquet": buffer.getvalue()})


def alternate(
    bench: Bench, sides: Sequence[str], name: str, run: Callable[[str, str], RunCost]
) -> dict[str, RunCost]:
    """Run the sides alternately, check their outputs, and return the medians of each side."""
    taken = defaultdict(list)
    for number in range(ROUNDS):
        for side in sides:
            output = f"{name}-{side}-{number}"
            taken[side].append(run(side, output))
            print(f"{name} {number + 1}: {side} {taken[side][-1]}", flush=True)
            check(bench.place(output))
    return {side: median(runs) for side, runs in taken.items()}


def check(output: Path) -> None:
    ids = pads.dataset(output).to_table(columns=["id"]).column("id").to_numpy()
    assert np.array_equal(np.sort(ids), np.arange(ROWS)), f"{output} does not hold each row once"


def median(runs: list[RunCost]) -> RunCost:
    columns = zip(*(astuple(run) for run in runs), strict=True)
    return RunCost(*(statistics.median(column) for column in columns))


def table_of_runs(whole: dict[str, RunCost], rest: dict[str, RunCost]) -> str:
    lines = ["| | seconds | of it beyond Ray's start | input read |", "| --- | --- | --- | --- |"]
    for side, taken in whole.items():
        lines.append(f"| {TITLES[side]}, undisturbed | {_figures(taken)} |")
    for side, taken in rest.items():
        lines.append(f"| {TITLES[side]}, {100 * taken.before:.0f} % done | {_figures(taken)} |")
    return "\n".join(lines)


def _figures(taken: RunCost) -> str:
    read = f"{taken.bytes / 1e6:.1f} MB in {taken.requests:.0f} requests"
    return f"{taken.seconds:.1f} | {taken.working:.1f} | {read}"


def table_of_faults(outcomes: dict[str, tuple[Outcome, Outcome]]) -> str:
    lines = ["| rows lost / rows twice | CheckpointConfig | ours |", "| --- | --- | --- |"]
    lines += [f"| {name} | {peer} | {ours} |" for name, (peer, ours) in outcomes.items()]
    return "\n".join(lines)


def faults(bench: Bench) -> bool:
    """Inject all faults, and return whether our runs lost and duplicated no row."""
    put_input(bench.server)
    scenarios, outcomes = Faults(bench.server, bench.directory), {}
    for number, scenario in enumerate(SCENARIOS):
        peer, ours = (scenarios.outcome(scenario, side, number) for side in ("peer", "ours"))
        outcomes[scenario.name] = peer, ours
        print(f"{scenario.name}: checkpoint {peer}, ours {ours}", flush=True)
    print(table_of_faults(outcomes))
    return all(ours.ended and ours.lost == ours.twice == 0 for _, ours in outcomes.values())


def runs(bench: Bench) -> bool:
    """Measure all runs. Return whether ours is within its limit and, when resumed, reads no more
    than Ray's checkpoint."""
    put_rows(bench.server)
    whole = alternate(bench, SIDES, "whole", bench.run)
    rest = alternate(bench, SIDES[1:], "resumed", bench.resume)
    print(table_of_runs(whole, rest))
    ratios = {side: whole[side].seconds / whole["plain"].seconds for side in SIDES[1:]}
    read = {side: rest[side].bytes / whole["plain"].bytes for side in SIDES[1:]}
    for side in SIDES[1:]:
        print(f"checkpoint {side} time={ratios[side]:.3f} bytes={read[side]:.3f}")
    return ratios["ours"] <= LIMIT + NOISE and read["ours"] <= read["checkpoint"]


PARTS = {"runs": runs, "faults": faults}


def main() -> None:
    failed = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "buckets").mkdir()
        log = directory / "requests.log"
        with (
            s3_server(directory / "buckets", log) as server,
            counted(server.endpoint) as relay,
        ):
            os.environ.update(server.environment)
            for bucket in ("source", "output"):
                server.client().create_bucket(Bucket=bucket)
            for part in sys.argv[1:] or PARTS:
                failed += [] if PARTS[part](Bench(server, relay, log, directory)) else [part]
    if failed:
        raise SystemExit(f"beyond the limits: {', '.join(failed)}")


if __name__ == "__main__":
    exit_on_signals()
    main()
