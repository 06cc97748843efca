"""Runs the job of a case with BatchInference, and reads its output with other libraries."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from batchinference.api.job_files import with_absolute_paths
from batchinference.pipeline.preflight import preflight
from batchinference.spec import BatchInference, SpecError, parse
from batchinference.spec.report import JobState, Report
from support.documents.minimal import document
from traps.case import Case, Outcome, Row

Run = Callable[[BatchInference], Report]
"""Runs a job to its end: on Ray, or in this process without it."""


def outcome_of(case: Case, directory: Path, run: Run) -> Outcome:
    """Run a case and return what the product did."""
    return (case.runs or run_job)(case, directory, run)


def run_job(case: Case, directory: Path, run: Run, **changes: Any) -> Outcome:
    """Run the job of a case once. `changes` replace fields of its spec."""
    try:
        job = with_absolute_paths(parse(job_of(case, **changes)), directory)
    except SpecError as error:
        return Outcome(error=str(error))
    problems = "; ".join(map(str, preflight(job.spec)))
    report = run(job)
    if report.state != JobState.SUCCEEDED:
        return Outcome(error=f"{report.reason}: {report.message}", problems=problems)
    output = Path(str(getattr(job.spec.write, "path", "")))
    return Outcome(
        rows=written(output),
        failed=[str(row["error"]) for row in _error_records(output)],
        warnings=_warnings(report),
        problems=problems,
    )


def job_of(case: Case, **changes: Any) -> dict[str, Any]:
    """Return the job of a case, with paths that are relative to its directory."""
    read = dict(case.read)
    if not {"items", "url", "name", "path", "paths"} & read.keys():
        read["paths"] = ["in"]
    spec = {
        "read": read,
        "steps": list(case.steps),
        "write": {"path": "out", **case.output},
        "errors": {"maxPercent": 100},
        **case.fields,
        **changes,
    }
    return document(case.id.lower().replace(".", "-"), **spec)


def _warnings(report: Report) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for warning in getattr(report, "warnings", ()):
        counts[str(warning.name)] += warning.count
    del counts["AnswerCut"]  # the cases ask for few tokens
    return counts


def written(output: Path) -> list[Row]:
    """Return the rows of all data files of an output."""
    rows: list[Row] = []
    for file in sorted(output.rglob("*")):
        parts = file.relative_to(output).parts
        if file.is_file() and not any(part.startswith(("_", ".")) for part in parts):
            rows += _rows_in(file)
    return rows


def _rows_in(file: Path) -> list[Row]:
    if file.suffix == ".parquet":
        return list(pq.ParquetFile(file).read().to_pylist())
    if file.suffix == ".csv":
        with file.open(newline="") as text:
            return list(csv.DictReader(text))
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in file.read_text().splitlines()]
    return []


def _error_records(output: Path) -> list[Row]:
    with suppress(FileNotFoundError):
        return written(output / "_batchinference" / "errors")
    return []


def without_ray(job: BatchInference) -> Report:
    """Run a job in this process."""
    from support.jobs.without_ray import run_without_ray

    return run_without_ray(job, rows_per_task=1_000_000)


def on_ray(job: BatchInference) -> Report:
    """Run a job on the Ray of this process."""
    from support.jobs.on_ray import run_job as run

    return run(job).report
