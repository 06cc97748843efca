"""The progress of a job: its counts, the stage in which rows are stuck, and its tokens."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.pipeline import job as job_module
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.dataset_control import busy_stages
from batchinference.pipeline.execution.stop_signals import run_monitored
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.job import JobRun
from batchinference.pipeline.report.builder import ReportBuilder
from batchinference.spec.progress import Counts, Progress
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.jobs.on_ray import job_document, run_job, write_lines, write_numbers
from support.jobs.without_ray import invoke_without_ray, run_task_again, run_without_ray
from support.outputs.builders import layout_of

COUNTS = st.builds(Counts, **dict.fromkeys(("read", "written", "failed"), st.integers(0, 500)))
TOTALS = st.none() | st.builds(RowCount, st.integers(0, 2000), st.booleans())


def begun(directory: Path, total: RowCount | None, before: int = 0) -> ReportBuilder:
    reports = ReportBuilder("job", layout_of(directory))
    reports.begin_rows(total, Counts(read=before, written=before))
    return reports


def progress_of(reports: ReportBuilder) -> Progress:
    progress = reports.build().progress
    assert progress is not None
    return progress


@given(TOTALS, st.lists(COUNTS, max_size=20), COUNTS)
def test_progress_never_goes_back_and_ends_with_the_final_count(
    total: RowCount | None, readings: list[Counts], last: Counts
) -> None:
    reports = begun(Path("out"), total)
    shown = [progress_of(reports)]
    for counts in readings:
        reports.read(counts)
        shown.append(progress_of(reports))
    for before, after in pairwise(shown):
        assert before.rows <= after.rows
        assert (before.total or 0) <= (after.total or 0)
    reports.enter(JobState.FINALIZING)
    reports.finish(last)
    assert progress_of(reports).at_rate(None) == Progress.of(last.read, last.read)
    assert reports.build().counts == last


def test_speed_of_a_finished_job_is_averaged_over_its_running_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary shows the speed next to the running time."""
    clock = iter((0.0, 0.0, 0.0, 5.0, 5.0, 25.0, 25.0, 25.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    reports = begun(tmp_path, RowCount(400, estimated=False), before=100)
    reports.read(Counts(read=399))
    reports.enter(JobState.FINALIZING)
    reports.finish(Counts(read=400))
    assert progress_of(reports).rows_per_second == 300 / reports.build().seconds["running"]


def test_rows_of_earlier_passes_do_not_count_for_the_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    reports, shown = begun(tmp_path, RowCount(300, estimated=False), before=200), []
    for now, rows in ((100.0, 200), (110.0, 250), (120.0, 240)):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        reports.read(Counts(read=rows, written=rows))
        shown.append(progress_of(reports))
    assert [each.rows for each in shown] == [200, 250, 250]
    assert [each.rows_per_second for each in shown] == [None, 5.0, 2.5]
    assert [each.eta for each in shown] == [None, "10s", "20s"]


def test_report_has_the_notes_of_all_passes(tmp_path: Path) -> None:
    run = JobRun(Mock(), Mock(), Mock(), Mock())
    run._reports = ReportBuilder("job", layout_of(tmp_path))
    for note in ({"retries": 3, "task": 1}, {"peak_bytes": 1}):
        run._add_notes([("write", json.dumps(note))])
    result = run._reports.build()
    assert result.memory is not None
    assert (result.retries, result.memory.peak_worker_bytes) == (3, 1)


def test_each_output_has_its_own_rows_over_time(tmp_path: Path) -> None:
    layout = layout_of(tmp_path)
    reports = ReportBuilder("two", layout)
    for rows in (400, 10):
        reports.begin_output(layout)
        reports.begin_rows(None, Counts())
        reports.read(Counts(read=rows))
    history = reports.build().rows_over_time
    assert history is not None
    assert history.rows == [0, 10]


SAME = 5
"""The number of equal readings in a row after which the job counts as blocked."""


def state(name: str, tasks: int = 0, *, queued: bool = False) -> Any:
    op = SimpleNamespace(name=name, num_active_tasks=lambda: tasks)
    return SimpleNamespace(op=op, has_pending_bundles=lambda: queued)


@pytest.mark.usefixtures("ray")
def test_busy_stage_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "second"
    monkeypatch.setattr(job_module, "run_monitored", partial(run_monitored, poll_seconds=0.1))
    source = write_lines(tmp_path / "in", {f"{n}.txt": ["hold", "on"] for n in range(4)})
    release, stages = tmp_path / "release", list[str | None]()

    def publish(report: Report) -> None:
        stages.append(report.stage)
        if stages[-SAME:] == [text] * SAME:
            release.touch()

    files = {"first": source / "0.txt", "second": source / "0.txt", text: release}
    code = {name: {"callable": "own_code:WaitFor", "callArgs": {"file": str(file)}}
            for name, file in files.items()}  # fmt: skip
    steps = [{"name": name, "python": python, "replicas": {}} for name, python in code.items()]
    run = run_job(job_document("held", source, tmp_path / "out", steps=steps), on_publish=publish)
    assert run.report.state == JobState.SUCCEEDED
    assert release.exists()
    assert run.report.stage is None, "it is over"
    assert run.report.steps["second"].wait_seconds is not None
    assert {run.report.steps[name].wait_seconds for name in ("read", "write")} == {None}
    assert run.report.capacity is not None
    assert run.report.capacity.cpus >= 1
    assert run.report.capacity.writers >= 2


def test_last_stage_with_running_tasks_or_waiting_rows_counts() -> None:
    running = [state("Input"), state("ReadRows->MapBatches(clean)", 2)]
    for others, expected in (
        ([state("MapBatches(embed)"), state("Write")], "read, clean"),
        ([state("MapBatches(embed)", queued=True), state("Write")], "embed"),
        ([state("MapBatches(embed)", 1), state("Write", 1)], "score, write"),
    ):
        assert busy_stages([*running, *others], "read", "score, write")[-1] == expected


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
