"""Tokens of models: counted once for each committed row, and limited."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from batchinference.pipeline.errors import JobFailure
from batchinference.spec.progress import Counts
from batchinference.spec.report import Report
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.jobs.on_ray import write_numbers
from support.jobs.without_ray import invoke_without_ray, run_task_again, run_without_ray

INPUT = {"a.jsonl": [1, 12, 3], "b.jsonl": [20, -5], "c.jsonl": [10, 11]}
"""The tokens of the prompt of each row. Negative ones fail, after they were used."""
IN, ROWS = 62, 7
STEP = {"name": "ask", "python": {"callable": "support.jobs.warning_steps:use_tokens"}}
LATER = {"name": "later", "python": {"callable": "support.jobs.warning_steps:fail_odd"}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_numbers(tmp_path / "in", INPUT)


def job(source: Path, *later: Document, tokens: int | None = None, **errors: object) -> Document:
    return document(
        "asking",
        read={"format": "json", "paths": [str(source)]},
        steps=[STEP, *later],
        write={"format": "json", "path": str(source.parent / "out")},
        errors={"maxRows": 5, **errors},
        cluster={"limits": {"tokens": tokens}} if tokens else {},
    )


def tokens_of(report: Report) -> tuple[int | None, int | None]:
    assert report.counts is not None
    return report.counts.input_tokens, report.counts.output_tokens


@pytest.mark.parametrize("later", [[], [LATER]], ids=["written", "some fail later"])
def test_report_counts_the_tokens_of_all_rows(source: Path, later: list[Document]) -> None:
    assert tokens_of(run_without_ray(job(source, *later))) == (IN, ROWS)


def test_job_that_uses_no_tokens_reports_none(source: Path) -> None:
    given = job(source)
    given["spec"]["steps"] = [LATER]
    report = run_without_ray(given)
    assert tokens_of(report) == (None, None)
    assert b"inputTokens" not in report.serialized()


def test_job_resumes_after_its_limit_of_tokens_was_raised(source: Path, messages: Messages) -> None:
    first = run_without_ray(job(source, LATER, maxRows=0))
    assert first.counts is not None
    assert 0 < first.counts.read < ROWS
    stopped = run_without_ray(job(source, LATER, tokens=first.counts.tokens - 1))
    assert (stopped.reason, stopped.counts) == ("LimitExceeded", first.counts)
    messages.check(stopped.message)
    resumed = run_without_ray(job(source, LATER, tokens=IN + ROWS))
    assert (resumed.reason, tokens_of(resumed)) == (None, (IN, ROWS))


def test_task_that_runs_again_adds_no_tokens(source: Path) -> None:
    given = job(source)
    run_without_ray(given)
    for task in range(3):
        with suppress(JobFailure):
            run_task_again(given, task)
    shown = invoke_without_ray("status", str(source.parent / "out"), "-o", "json")
    (status,) = json.loads(shown.stdout)
    assert (status["inputTokens"], status["outputTokens"]) == (IN, ROWS)


def test_tokens_are_added_up_as_far_as_they_are_known() -> None:
    parts = [Counts(read=1), Counts(inputTokens=5), Counts(inputTokens=7, outputTokens=2)]
    assert Counts.sum(parts) == Counts(read=1, inputTokens=12, outputTokens=2)
