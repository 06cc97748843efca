"""`batchinference run --limit`: a trial over the first rows, next to the output of the job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.jobs.on_ray import job_document, write_lines
from support.jobs.without_ray import invoke_without_ray
from support.outputs.rows import rows_of

TEXTS = ["one", "two", "three", "four", "five"]
WriteJob = Callable[..., None]


@pytest.fixture
def write_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteJob:
    """Return a function that writes a job over five lines of text to job.yaml."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "in", {"a.txt": TEXTS[:2], "b.txt": TEXTS[2:]})

    def write(**spec: Any) -> None:
        Path("job.yaml").write_text(yaml.safe_dump(job_document("demo", "in", "./out", **spec)))

    return write


def texts(output: str) -> list[str]:
    return [row["text"] for row in rows_of(Path(output))]


def files_in(directory: str) -> dict[Path, bytes]:
    paths = (path for path in Path(directory).rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in paths}


def test_trial_has_first_rows_and_an_output_of_its_own(write_job: WriteJob, tmp_path: Path) -> None:
    write_job()
    done = invoke_without_ray("run", "job.yaml", "--limit", "3")
    assert done.exit_code == 0, done.stderr
    assert sorted(texts("out-limit-3")) == sorted(TEXTS[:3])
    assert not Path("out").exists()
    text = tmp_path / "out-limit-3"
    assert f"demo: trial with the first 3 rows, written to {text}\n" in done.stderr
    assert f"output  {text}\n" in done.stderr
    assert f"report  {text}/_batchinference/report.html\n" in done.stderr
    assert (text / "_batchinference" / "report.html").is_file()


def test_trial_does_not_change_the_output_of_the_job(write_job: WriteJob) -> None:
    write_job(write={"mode": "append"})
    assert invoke_without_ray("run", "job.yaml").exit_code == 0
    before = files_in("out")
    assert invoke_without_ray("run", "job.yaml", "--limit", "2").exit_code == 0
    assert files_in("out") == before
    assert invoke_without_ray("run", "job.yaml").exit_code == 0
    assert sorted(texts("out")) == sorted(TEXTS)


def test_trial_replaces_the_output_of_an_earlier_trial(write_job: WriteJob) -> None:
    write_job()
    assert invoke_without_ray("run", "job.yaml", "--limit", "2").exit_code == 0
    write_job(steps=[{"name": "keep", "filter": "text != 'one'"}])
    assert invoke_without_ray("run", "job.yaml", "--limit", "2").exit_code == 0
    assert texts("out-limit-2") == ["two"]


def test_trial_does_not_replace_other_files(write_job: WriteJob) -> None:
    write_job(write={"mode": "overwrite"})
    Path("out-limit-2").mkdir()
    (Path("out-limit-2") / "mine.csv").write_text("precious")
    done = invoke_without_ray("run", "job.yaml", "--limit", "2")
    assert done.exit_code == 2
    assert "out-limit-2' holds files that no BatchInference" in done.stderr
    assert (Path("out-limit-2") / "mine.csv").read_text() == "precious"


def test_limit_is_at_least_one_row(write_job: WriteJob) -> None:
    write_job()
    done = invoke_without_ray("run", "job.yaml", "--limit", "0")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--limit" in done.stderr
