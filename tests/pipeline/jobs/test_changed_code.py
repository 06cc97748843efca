"""Runs of a job whose code has changed since its output was begun."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import yaml

from batchinference.cli import exits
from support.jobs.on_ray import job_document, write_lines
from support.jobs.without_ray import Invoked, invoke_without_ray
from support.outputs.rows import rows_of

STEP = "def change(row):\n    return {**row, 'text': row['text'] + '%s'}\n"
CHANGED = "steps[0].python: module changing.py changed since the output was begun (from "


class Job:
    """A job with its own module in the same directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.output = directory / "out"
        write_lines(directory / "in", {"a.txt": ["a"]})
        self.change("1")

    def change(self, suffix: str) -> None:
        (self.directory / "changing.py").write_text(STEP % suffix)
        sys.modules.pop("changing", None)
        importlib.invalidate_caches()

    def run(self, *options: str, mode: str = "error", **spec: object) -> Invoked:
        python = {"callable": "changing:change", "method": "map"}
        write = {"format": "parquet", "mode": mode}
        steps = [{"name": "own", "python": python}]
        job = job_document("job", "in", "out", steps=steps, write=write, **spec)
        (self.directory / "job.yaml").write_text(yaml.safe_dump(job))
        return invoke_without_ray("run", str(self.directory / "job.yaml"), *options)

    def texts(self) -> list[str]:
        return sorted(row["text"] for row in rows_of(self.output))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Job(tmp_path)


@pytest.mark.parametrize("complete", [True, False])
def test_output_of_other_code_is_refused_until_a_restart(job: Job, complete: bool) -> None:
    assert job.run().exit_code == exits.SUCCESS
    if not complete:
        for name in ("_SUCCESS", "_batchinference/output.json"):
            (job.output / name).unlink()
    job.change("2")
    refused = job.run()
    assert refused.exit_code == exits.JOB_FAILED
    assert CHANGED in refused.stderr
    assert "Run with --restart to start over" in refused.stderr
    assert job.texts() == ["a1"]
    job.change("1")
    assert job.run().exit_code == exits.SUCCESS, "the code was restored"
    job.change("2")
    assert job.run("--restart").exit_code == exits.SUCCESS
    assert job.texts() == ["a2"]
    assert "complete already" in job.run().stderr


@pytest.mark.parametrize("retry", [False, True])
def test_restart_of_an_unchanged_job_repeats_it(job: Job, retry: bool) -> None:
    job.run()
    before = {path.name for path in job.output.glob("part-*")}
    assert job.run("--restart", errors={"retry": retry}).exit_code == exits.SUCCESS
    assert before.isdisjoint(path.name for path in job.output.glob("part-*"))
    assert job.texts() == ["a1"]


@pytest.mark.parametrize("complete", [True, False])
def test_damaged_hashes_do_not_block_a_restart(job: Job, complete: bool) -> None:
    job.run()
    if not complete:
        (job.output / "_SUCCESS").unlink()
    (job.output / "_batchinference/code.json").write_text("damaged")
    assert "it is unknown whether the code has changed" in job.run().stderr
    assert job.run("--restart").exit_code == exits.SUCCESS
    assert job.texts() == ["a1"]


def test_new_files_are_added_with_changed_code(job: Job) -> None:
    job.run(mode="append")
    job.change("2")
    write_lines(job.directory / "in", {"b.txt": ["b"]})
    assert job.run(mode="append").exit_code == exits.SUCCESS
    assert job.texts() == ["a1", "b2"]
    refused = job.run("--restart", mode="append")
    assert "--restart: write.mode append keeps the rows of earlier runs" in refused.stderr
    assert job.texts() == ["a1", "b2"]
