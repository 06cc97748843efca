"""The results as a table, for docs/contributing/chaos.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from chaos.inputs import ROWS
from chaos.runner import Injected, Result

_HEAD = """# Chaos test results

This page is for contributors: jobs on a cluster while faults are injected. It was recorded by

    make chaos CHAOS_JOBS={jobs} CHAOS_SEED={seed} \\
        CHAOS_OPTIONS="--faults {faults} --at-once {at_once} --write"

on a cluster with KubeRay 1.6 and one node with two CPUs. {at_once} jobs ran at a time. They read
from S3 and wrote to S3.

The seed mixes four properties of the jobs, and draws each value once before any is repeated:

- the format of the input;
- the pools: none (tasks read, run all steps and commit; files of webdataset are read by tasks of
  their own), one, two, or a pool and a fake vLLM engine;
- what the steps do: rows become several or none, are filtered or exploded, or fail in part;
- the output: Parquet, JSON or CSV files, or a Delta table.

Each job has {rows} input rows. One row in a hundred raises an error. The test injects {faults}
faults into each job at random times. A fault in a component that all jobs share is listed for
every job that was running at that time.

The jobs access S3 through a proxy that cuts connections, delays requests and answers with status
503. It does this to one request in a hundred, and to every other request during a connection
storm (`connections`).

{table}

After each job, `batchinference verify` checked the output against the input. An independent
reader also compared the rows and the error records with the expected ones.

- *Attempts* are the attempts in the status of the job, with the causes of the failed ones.
- *Runs of the driver* can exceed the attempts, because KubeRay may restart the driver within an
  attempt. Each run resumes with the missing rows.
- *Rows done again* are rows that were processed more than once. The first step of each job counts
  every row that it processes; the input rows are subtracted from this count.
- *Missing* and *duplicated* are numbers of input rows.

Faults injected: {injected}.

Requests that the proxy disturbed: {faulty}.
"""
COLUMNS = (
    "job", "reads, pools, does, writes", "faults, and seconds after its start", "attempts",
    "runs of the driver", "rows done again", "missing", "duplicated", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The options of a run, which docs/contributing/chaos.md repeats."""

    seed: int
    faults: int
    at_once: int


def page(results: list[Result], faulty: Counter[str], options: Options) -> str:
    """Return the text of docs/contributing/chaos.md."""
    faults = Counter(one.fault for one in _faults(results))
    return _HEAD.format(
        jobs=len(results),
        at_once=options.at_once,
        rows=ROWS,
        seed=options.seed,
        faults=options.faults,
        table=table(results),
        injected=_listed(faults),
        faulty=_listed(faulty),
    )


def table(results: list[Result]) -> str:
    lines = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, results), _total(results)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _faults(results: list[Result]) -> set[Injected]:
    return {one for result in results for one in result.faults}


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _row(result: Result) -> tuple[str, ...]:
    faults = sorted(result.faults, key=lambda one: one.at)
    attempts = result.status.get("attempts", [])
    causes = Counter(attempt["cause"] for attempt in attempts if "cause" in attempt)
    lost = ", ".join(f"{cause} {count}" for cause, count in causes.items())
    return (
        result.job.name,
        result.job.summary,
        ", ".join(f"{one.fault} {one.at - result.began:.0f}" for one in faults),
        f"{len(attempts)} ({lost})" if lost else str(len(attempts)),
        str(result.proof.runs),
        _again(result.again, ROWS),
        str(result.proof.missing),
        str(result.proof.duplicated),
        f"{result.ended - result.began:.0f}",
    )


def _total(results: list[Result]) -> tuple[str, ...]:
    rows = ROWS * len(results)
    return (
        "all",
        f"{rows} rows",
        f"{len(_faults(results))} faults",
        str(sum(len(result.status.get("attempts", [])) for result in results)),
        str(sum(result.proof.runs for result in results)),
        _again(sum(result.again for result in results), rows),
        str(sum(result.proof.missing for result in results)),
        str(sum(result.proof.duplicated for result in results)),
        f"{max(s.ended for s in results) - min(s.began for s in results):.0f}",
    )


def _again(again: int, rows: int) -> str:
    return f"{again} ({again / rows:.1%})"
