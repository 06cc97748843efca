"""Runs jobs on the session's Ray, or in this process without Ray, and reads their output."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batchinference.pipeline.execution.stop_signals import StopSignal
from batchinference.pipeline.job import JobRun
from batchinference.plan import Plan, plan_for_machine
from batchinference.spec import BatchInference, parse
from batchinference.spec.report import Report
from support.documents.minimal import Document, document
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import Row, rows_of


def job_document(name: str, source: Path | str, output: Path | str, **spec: Any) -> Document:
    """Return a job that copies lines of text to JSON. `spec` replaces top-level fields, but only
    single fields of `read` and `write`."""
    read = {"format": "text", "paths": [str(source)], **spec.pop("read", {})}
    write = {"format": "json", "path": str(output), **spec.pop("write", {})}
    return document(name, read=read, write=write, **spec)


@dataclass
class Run:
    """A job that has ended, and all reports that it published."""

    report: Report
    published: list[Report] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Rows read, written, failed and filtered."""
        counts = self.report.counts
        assert counts is not None
        return counts.read, counts.written, counts.failed, counts.filtered


def run_job(
    job: Document | BatchInference,
    plan: Plan | None = None,
    on_publish: Callable[[Report], None] = lambda report: None,
    stop: StopSignal | None = None,
    **fields: Any,
) -> Run:
    """Run a job on the session's Ray. `fields` are fields of its plan."""
    parsed = job if isinstance(job, BatchInference) else parse(job)
    published: list[Report] = []
    chosen = replace(plan or plan_for_machine(parsed.spec, gpus=0), **fields)
    publish = _publisher(published, on_publish)
    report = JobRun(parsed, lambda: nullcontext(chosen), publish, stop or StopSignal()).run()
    return Run(report, published)


def run_in_process(
    job: Document | BatchInference,
    on_publish: Callable[[Report], None] = lambda report: None,
    stop: StopSignal | None = None,
) -> Run:
    """Run a job without Ray."""
    published: list[Report] = []
    publish = _publisher(published, on_publish)
    return Run(run_without_ray(job, publish, rows_per_task=200, stop=stop), published)


def _publisher(
    published: list[Report], on_publish: Callable[[Report], None]
) -> Callable[[Report], None]:
    def publish(report: Report) -> None:
        published.append(report)
        on_publish(report)

    return publish


def errors_of(output: Path) -> list[Row]:
    """Return the failed rows of an output from their default path."""
    directory = output / "_batchinference" / "errors"
    return rows_of(directory) if directory.exists() else []


def data_files(directory: Path) -> list[Path]:
    """Return the files of a data set: those whose names begin with no dot or underscore."""
    return sorted(
        file
        for file in directory.glob("*")
        if file.is_file() and not file.name.startswith((".", "_"))
    )


def without_order(rows: Iterable[Row]) -> list[str]:
    """Return rows in a form that can be compared in any order, duplicates included."""
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


def write_numbers(directory: Path, files: dict[str, list[int]]) -> Path:
    """Write JSON lines with the id of each row and its number `n` to a new directory."""
    ids = itertools.count()
    return write_lines(
        directory,
        {
            name: [json.dumps({"id": next(ids), "n": number}) for number in numbers]
            for name, numbers in files.items()
        },
    )


def write_lines(directory: Path, files: dict[str, list[str]]) -> Path:
    """Write text files with these lines to a new directory."""
    for name, lines in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines))
    return directory
