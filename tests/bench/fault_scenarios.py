"""Compares runs that are killed at a fault and resumed with those of Ray's CheckpointConfig.

The rows of the output are then read from its files, as any reader does.
"""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import yaml
from faults import COMMITTED_BEFORE, FAULT, FLAGS, Point
from s3_bench import s3_bench
from stop_signals import exit_on_signals

from support.documents.minimal import document, python_step
from support.jobs.command import Command, wait_until
from support.servers.s3 import S3Server

HERE = Path(__file__).parent
SOURCE = "s3://source/faults/"
CHILDREN_PER_BLOCK = 100
FILES, ROWS, PARTS = 24, 20, 30
"""Input files, rows per file, and elements of the list in each row."""
PATIENCE = 600
Side = Literal["peer", "ours"]


@dataclass(frozen=True)
class Scenario:
    """A fault of the first run, which is killed as soon as all flags of `ready` exist."""

    name: str
    fault: str
    ready: tuple[str, ...]
    names: str = ""
    explodes: bool = False
    late: Point | None = None
    """The point at which a worker that survives its run waits until the second run has begun."""


AFTER_TEN = tuple(f"committed-{task}" for task in range(10, 20))
IN_THE_MIDDLE = tuple(f"committed-{task}" for task in range(COMMITTED_BEFORE))
SCENARIOS = [
    Scenario("1. a worker dies after its commit, the driver during the retry", "worker dies",
             ("hangs",)),
    Scenario("2. explode: rows in several blocks, killed in between", "stops in the middle",
             IN_THE_MIDDLE, explodes=True),
    Scenario("3. file names without padding, one task uncommitted", "one is slow",
             ("hangs", *AFTER_TEN), names="unpadded"),
    Scenario("3. default file names past their padding", "one is slow",
             ("hangs", *AFTER_TEN), names="beyond"),
    Scenario("4. a worker puts its data and commits after the next run began", "one is cut off",
             ("cut off", *AFTER_TEN), late="puts"),
    Scenario("4. a worker has put its data and commits after the next run began", "one is cut off",
             ("cut off", *AFTER_TEN), late="put"),
]  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    lost: int
    twice: int
    rows: int
    ended: bool
    """Whether the second run succeeded."""

    def __str__(self) -> str:
        summary = f"{self.lost} / {self.twice} of {self.rows}"
        return summary if self.ended else f"{summary}, the job fails"


def put_input(server: S3Server) -> None:
    """Upload the input of all scenarios to source/faults."""
    parts = [list(range(PARTS))] * ROWS
    for number in range(FILES):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        buffer = io.BytesIO()
        pq.write_table(pa.table({"id": ids, "parts": parts}), buffer)
        server.put("source", {f"faults/{number:03d}.parquet": buffer.getvalue()})


@dataclass(frozen=True)
class Faults:
    """Runs scenarios on a server. `directory` holds the flags and job files."""

    server: S3Server
    directory: Path

    def outcome(self, scenario: Scenario, side: Side, number: int) -> Outcome:
        """Kill a run in the middle of a scenario, run the same command again to its end, and return
        the rows of the output."""
        run = ScenarioRun(self, scenario, side, f"fault-{number}-{side}")
        run.flags.mkdir()
        first = run.command(scenario.fault)
        with first.start() as going:
            wait_until(lambda: going.poll() is not None or run.have_flags(scenario.ready),
                       scenario.name, PATIENCE)  # fmt: skip
            late = run.late().start() if scenario.late else None
            if late:
                wait_until(lambda: run.have_flags(["waits"]), "the late worker", PATIENCE)
            assert going.poll() is None, f"{run.output} has ended before the fault"
            first.kill()
        ended = run.command("next run" if late else "").run(timeout=PATIENCE)
        if late:
            late.communicate(timeout=PATIENCE)
        if ended.returncode:
            print(ended.stdout[-2000:], ended.stderr[-2000:], flush=True)
        table = pads.dataset(self.server.directory / "output" / run.output).to_table()
        return outcome_of(table, scenario.explodes, ended=ended.returncode == 0)


@dataclass(frozen=True)
class ScenarioRun:
    """The commands that run a scenario on one side."""

    faults: Faults
    scenario: Scenario
    side: Side
    output: str

    @property
    def flags(self) -> Path:
        return self.faults.directory / f"{self.output}-flags"

    def have_flags(self, flags: Iterable[str]) -> bool:
        return all((self.flags / name).exists() for name in flags)

    def command(self, fault: str) -> Command:
        arguments = self._ray_data_script() if self.side == "peer" else self._job()
        return self._python(arguments, fault)

    def late(self) -> Command:
        fault: dict[Point, str] = {"puts": "late before its data", "put": "late before its commit"}
        assert self.scenario.late is not None
        return self._python(["late_worker.py"], fault[self.scenario.late])

    def _python(self, arguments: list[str], fault: str) -> Command:
        env = {
            **self.faults.server.environment,
            "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
            FLAGS: str(self.flags),
            FAULT: fault,
            "FILE_NAMES": self.scenario.names,
            **({"EXPLODE": "1"} if self.scenario.explodes else {}),
        }
        return Command(arguments, HERE, env, Path(sys.executable))

    def _ray_data_script(self) -> list[str]:
        locations = (SOURCE, f"s3://output/{self.output}", f"s3://output/{self.output}-checkpoint")
        return ["faulty_peer.py", *locations]

    def _job(self) -> list[str]:
        steps = [
            {"name": "explode", "explode": {"column": "parts"}},
            python_step("cut", "faults:Same", replicas={}, batchSize=CHILDREN_PER_BLOCK),
        ]
        job = document(
            self.output,
            read={"format": "parquet", "paths": [SOURCE], "options": {"overrideNumBlocks": FILES}},
            steps=steps if self.scenario.explodes else [],
            # with rowsPerFile, the job has write tasks, into which the faults are injected
            write={"format": "parquet", "path": f"s3://output/{self.output}", "rowsPerFile": ROWS},
        )
        file = self.faults.directory / f"{self.output}.yaml"
        file.write_text(yaml.safe_dump(job))
        return ["faulty_job.py", str(file)]


def outcome_of(table: pa.Table, explodes: bool, *, ended: bool) -> Outcome:
    ids = range(FILES * ROWS)
    if explodes:
        keys = list(zip(*(table.column(name).to_pylist() for name in ("id", "parts")), strict=True))
        expected = Counter[object]((row, part) for row in ids for part in range(PARTS))
    else:
        keys, expected = table.column("id").to_pylist(), Counter[object](ids)
    there = Counter[object](keys)
    return Outcome((expected - there).total(), (there - expected).total(), expected.total(), ended)


def table_of_faults(outcomes: dict[str, tuple[Outcome, Outcome]]) -> str:
    lines = ["| rows lost / rows twice | CheckpointConfig | ours |", "| --- | --- | --- |"]
    lines += [f"| {name} | {peer} | {ours} |" for name, (peer, ours) in outcomes.items()]
    return "\n".join(lines)


def main() -> None:
    """Inject all faults. Fail unless ours loses and repeats no row."""
    outcomes = {}
    with s3_bench() as bench:
        put_input(bench.server)
        scenarios = Faults(bench.server, bench.directory)
        for number, scenario in enumerate(SCENARIOS):
            peer, ours = (scenarios.outcome(scenario, side, number) for side in ("peer", "ours"))
            outcomes[scenario.name] = peer, ours
            print(f"{scenario.name}: checkpoint {peer}, ours {ours}", flush=True)
    print(table_of_faults(outcomes))
    if not all(ours.ended and ours.lost == ours.twice == 0 for _, ours in outcomes.values()):
        raise SystemExit("rows of ours were lost or repeated")


if __name__ == "__main__":
    exit_on_signals()
    main()
