"""Runs of a job whose code has changed since its output was begun."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import yaml

from batchinference.cli import exits
from batchinference.pipeline.commit import output_plan
from batchinference.pipeline.commit.changes import parse_code
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.execution import segment
from batchinference.pipeline.steps.code_identity import code_of
from batchinference.spec import parse
from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.documents.minimal import Document
from support.jobs.on_ray import job_document, run_in_process, write_lines
from support.jobs.without_ray import Invoked, invoke_without_ray
from support.outputs.batches import good
from support.outputs.builders import begin_job, commit_rows
from support.outputs.rows import rows_of

CHANGED = "steps[0].python: module changing.py changed since the output was begun (from "

STEP = "def change(row):\n    return {**row, 'text': row['text'] + '%s'}\n"
FAILING = "def change(row):\n    raise ValueError('not yet')\n"
FAILING_LATER = """
def change(row):
    if row["text"] == "b":
        raise ValueError("not yet")
    return row
"""


class Job:
    """A job with its own module in the same directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.output = directory / "out"
        write_lines(directory / "in", {"a.txt": ["a"]})
        self.change("1")

    def change(self, suffix: str) -> None:
        self.put_code(STEP % suffix)

    def put_code(self, text: str) -> None:
        """Replace the module. The next run loads it, as a new process does."""
        (self.directory / "changing.py").write_text(text)
        segment._LOADED.clear()
        sys.modules.pop("changing", None)
        importlib.invalidate_caches()

    def document(self, mode: str = "error", **spec: object) -> Document:
        python = spec.pop("python", {"callable": "changing:change", "method": "map"})
        write = {"format": "parquet", "mode": mode}
        steps = [{"name": "own", "python": python}]
        source, output = self.directory / "in", self.directory / "out"
        return job_document("embed", source, output, steps=steps, write=write, **spec)

    def run(self, *options: str, mode: str = "error", **spec: object) -> Invoked:
        job = self.document(mode, **spec)
        (self.directory / "job.yaml").write_text(yaml.safe_dump(job))
        return invoke_without_ray("run", str(self.directory / "job.yaml"), *options)

    def unfinish(self) -> None:
        for name in ("_SUCCESS", "_batchinference/output.json"):
            (self.output / name).unlink()

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
        job.unfinish()
    job.change("2")
    refused = job.run()
    assert refused.exit_code == exits.BAD_INPUT
    assert CHANGED in refused.stderr
    assert "Run `batchinference run " in refused.stderr
    assert job.texts() == ["a1"]
    job.change("1")
    assert job.run().exit_code == exits.SUCCESS, "the code was restored"
    job.change("2")
    assert job.run("--restart").exit_code == exits.SUCCESS
    assert job.texts() == ["a2"]
    assert "complete already" in job.run().stderr


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_code_may_be_corrected_until_the_first_commit(job: Job, mode: str) -> None:
    job.put_code(FAILING)
    assert "not yet" in job.run(mode=mode).stderr
    job.change("2")
    assert job.run(mode=mode).exit_code == exits.SUCCESS
    assert job.texts() == ["a2"]
    (code,) = job.output.glob("_batchinference/**/code.json")
    assert parse_code(code.read_bytes()) == code_of(parse(job.document(mode)).spec)


def test_code_is_refused_after_the_first_commit(job: Job) -> None:
    write_lines(job.directory / "in", {"b.txt": ["b"]})
    job.put_code(FAILING_LATER)
    assert "not yet" in job.run().stderr
    job.change("2")
    assert CHANGED in job.run().stderr


def test_new_code_is_refused_if_an_earlier_run_commits_before_it_ends(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = begin_job(job.document()).attempt
    job.change("2")
    monkeypatch.setattr(
        output_plan, "ensure_not_running", lambda *_: commit_rows(earlier, good(0, 0, [1]))
    )
    with pytest.raises(BadOutput, match=r"changing\.py changed"):
        begin_job(job.document())
    assert [entry.counts.read for entry in earlier.load_committed().entries] == [1]


@pytest.mark.parametrize("retry", [False, True])
def test_restart_of_an_unchanged_job_repeats_it(job: Job, retry: bool) -> None:
    job.run()
    before = {path.name for path in job.output.glob("part-*")}
    assert job.run("--restart", errors={"retryFailedRows": retry}).exit_code == exits.SUCCESS
    assert before.isdisjoint(path.name for path in job.output.glob("part-*"))
    assert job.texts() == ["a1"]


def run_another_job(job: Job, mode: str = "error") -> None:
    """Run a job that copies the rows to the same output."""
    document = job.document(mode)
    document["metadata"]["name"], document["spec"]["steps"] = "other", []
    assert run_in_process(document).report.state is JobState.SUCCEEDED


def test_restart_keeps_the_output_of_another_job(job: Job) -> None:
    run_another_job(job)
    refused = job.run("--restart")
    assert refused.exit_code == exits.BAD_INPUT
    assert "holds the output of another job, other on " in refused.stderr
    assert job.texts() == ["a"]
    assert job.run("--restart", mode="overwrite").exit_code == exits.SUCCESS
    assert job.texts() == ["a1"]


def test_restart_keeps_rows_that_another_job_has_appended(job: Job) -> None:
    job.run()
    run_another_job(job, "append")
    refused = job.run("--restart")
    assert refused.exit_code == exits.BAD_INPUT
    assert "holds rows that other on " in refused.stderr
    assert job.texts() == ["a", "a1"]
    assert job.run("--restart", mode="overwrite").exit_code == exits.SUCCESS
    assert job.texts() == ["a1"]


def test_restart_replaces_what_the_job_itself_has_appended(job: Job) -> None:
    job.run(mode="append")
    write_lines(job.directory / "in", {"b.txt": ["b"]})
    job.run(mode="append")
    job.change("2")
    assert job.run("--restart").exit_code == exits.SUCCESS
    assert job.texts() == ["a2", "b2"]


@pytest.mark.parametrize("complete", [True, False])
def test_damaged_hashes_do_not_block_a_restart(job: Job, complete: bool) -> None:
    job.run()
    if not complete:
        (job.output / "_SUCCESS").unlink()
    (job.output / "_batchinference/code.json").write_text("damaged")
    assert "it is unknown whether the code has changed" in job.run().stderr
    assert job.run("--restart").exit_code == exits.SUCCESS
    assert job.texts() == ["a1"]


def test_new_files_are_added_with_changed_code(job: Job, messages: Messages) -> None:
    job.run(mode="append")
    job.change("2")
    write_lines(job.directory / "in", {"b.txt": ["b"]})
    assert job.run(mode="append").exit_code == exits.SUCCESS
    assert job.texts() == ["a1", "b2"]
    refused = job.run("--restart", mode="append")
    messages.check(refused.stderr)
    assert job.texts() == ["a1", "b2"]
