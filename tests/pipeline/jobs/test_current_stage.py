"""The report names the stage in which rows are stuck."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchinference.pipeline import job as job_module
from batchinference.pipeline.execution.control import busy_stages
from batchinference.pipeline.execution.stop_signals import run_monitored
from batchinference.spec.report import JobState, Report
from support.jobs.on_ray import job_document, run_job, write_lines

SAME = 5
"""The number of equal readings in a row after which the job counts as blocked."""


def state(name: str, tasks: int = 0, *, queued: bool = False) -> Any:
    op = SimpleNamespace(name=name, num_active_tasks=lambda: tasks)
    return SimpleNamespace(op=op, has_pending_bundles=lambda: queued)


@pytest.mark.usefixtures("ray")
def test_busy_stage_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = "second"
    monkeypatch.setattr(job_module, "run_monitored", partial(run_monitored, poll_seconds=0.1))
    source = write_lines(tmp_path / "in", {f"{n}.txt": ["hold", "on"] for n in range(4)})
    release, stages = tmp_path / "release", list[str | None]()

    def publish(report: Report) -> None:
        stages.append(report.stage)
        if stages[-SAME:] == [held] * SAME:
            release.touch()

    files = {"first": source / "0.txt", "second": source / "0.txt", held: release}
    code = {name: {"callable": "own_code:WaitFor", "callArgs": {"file": str(file)}}
            for name, file in files.items()}  # fmt: skip
    steps = [{"name": name, "python": python, "replicas": {}} for name, python in code.items()]
    run = run_job(job_document("held", source, tmp_path / "out", steps=steps), on_publish=publish)
    assert run.report.state == JobState.SUCCEEDED
    assert release.exists()
    assert run.report.stage is None, "it is over"


def test_last_stage_with_running_tasks_or_waiting_rows_counts() -> None:
    running = [state("Input"), state("ReadRowSource->MapBatches(clean)", 2)]
    for others, expected in (
        ([state("MapBatches(embed)"), state("Write")], "read, clean"),
        ([state("MapBatches(embed)", queued=True), state("Write")], "embed"),
        ([state("MapBatches(embed)", 1), state("Write", 1)], "score, write"),
    ):
        assert busy_stages([*running, *others], "read", "score, write")[-1] == expected
