"""`batchinference.run`: results, errors and failures. The page's example runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchinference import Job, JobFailed, run
from batchinference.pipeline.errors import BadInput
from plugins.messages import Messages
from support.documents.pages import blocks
from support.jobs.on_ray import write_lines
from support.jobs.without_ray import in_this_process, without_starting_ray
from support.outputs.tables import table_rows, write_fields

READ = {"format": "text", "paths": ["in"]}


@pytest.fixture(autouse=True)
def inputs(tmp_path: Path, own_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "in", {"a.txt": ["fine", "bad 1", "fine too"]})


def run_here(job: Job, **options: Any) -> Any:
    with in_this_process(), without_starting_ray():
        return run(job, **options)


def job_of(write: dict[str, Any], limit: int = 1) -> Job:
    steps = [{"name": "own", "python": {"callable": "own_code:refuse_bad"}}]
    return Job(READ, write, steps, errors={"maxRows": limit})


def test_a_failed_job_raises_its_report() -> None:
    with pytest.raises(JobFailed, match="step 'own' failed on row 1 of ") as raised:
        run_here(job_of({"format": "json", "path": "out"}, limit=0))
    assert raised.value.report.reason == "Application"


def test_a_run_resumes_restarts_and_retries(messages: Messages) -> None:
    job = job_of({"format": "json", "path": "out"})
    with messages.raises(BadInput):
        run_here(job, retry_errors=True)
    run_here(job)
    messages.check(run_here(job).report.message)
    assert run_here(job, restart=True).report.message is None
    assert run_here(job, retry_errors=True).report.counts.failed == 1
    with messages.raises(BadInput):
        run_here(job, restart=True, retry_errors=True)


SHORT = {"name": "short", "filter": "len(text) < 5"}


@pytest.mark.parametrize("format_", ["sql", "iceberg"])
def test_a_restart_keeps_the_rows_of_a_table_of_others(
    tmp_path: Path, format_: str, messages: Messages
) -> None:
    """The output at the path is of this job, but the job wrote to another table."""
    theirs = write_fields(format_, tmp_path)
    own = {**theirs, "table": f"{theirs['table']}_of_mine"}
    run_here(Job(READ, {**theirs, "path": "other"}, name="other"))
    run_here(Job(READ, own, name="lines"))
    with messages.raises(JobFailed):
        run_here(Job(READ, theirs, name="lines"), restart=True)
    assert len(table_rows(format_, tmp_path)) == 3
    assert run_here(Job(READ, own, name="lines"), restart=True).report.counts.written == 3
    overwriting = Job(READ, {**theirs, "mode": "overwrite"}, [SHORT], name="lines")
    run_here(overwriting, restart=True)
    assert len(table_rows(format_, tmp_path)) == 1


def test_check_returns_the_problems() -> None:
    job = Job({**READ, "paths": ["nowhere"]}, {"format": "json", "path": "out"})
    (problem,) = job.check()
    assert "read.paths[0]" in problem.message


def test_the_example_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "reviews.csv").write_text("text,stars,user\nfine,5,a\nbad,1,b\n")
    first, second, notebook, _ = blocks("docs/python.md", "python")
    with in_this_process(), without_starting_ray():
        exec(first, {})
        assert "fine      5" in capsys.readouterr().out
        exec(second, {})
        exec(notebook, {"__name__": "__main__"})
    assert "really good      5    1      22" in capsys.readouterr().out
