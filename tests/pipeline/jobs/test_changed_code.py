"""The code or the spec of a job has changed since its output was begun: what differs, whether the
work is still the same, and what the job does."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchinference.cli import exits
from batchinference.pipeline.commit import pass_plan
from batchinference.pipeline.commit.code_and_spec_changes import describe_spec_change, parse_code
from batchinference.pipeline.commit.output_paths import Layout, work_key, work_of
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.execution import segment
from batchinference.pipeline.steps.code_hashes import code_of
from batchinference.pipeline.storage.location import Location
from batchinference.spec import parse
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.report import JobState
from batchinference.spec.secrets import without_secrets
from plugins.messages import Messages
from support.documents.minimal import Document, document, model_step, python_step
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
        segment.unload_stages()
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
    earlier = begin_job(job.document()).job_pass
    job.change("2")
    monkeypatch.setattr(
        pass_plan, "ensure_not_running", lambda *_: commit_rows(earlier, good(0, 0, [1]))
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


@pytest.mark.parametrize(
    ("mode", "texts", "reason"),
    [
        ("error", ["a"], "holds the output of another job, other on "),
        ("append", ["a", "a1"], "holds rows that other on "),
    ],
)
def test_restart_keeps_the_rows_of_another_job(
    job: Job, mode: str, texts: list[str], reason: str
) -> None:
    if mode == "append":
        job.run()
    run_another_job(job, mode)
    refused = job.run("--restart")
    assert refused.exit_code == exits.BAD_INPUT
    assert reason in refused.stderr
    assert job.texts() == texts
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


SIZE_64 = {"decode": {"column": "a", "format": "image", "size": [64, 64]}}
SIZE_32 = {"decode": {"column": "a", "format": "image", "size": [32, 32]}}


def own(**arguments: str) -> dict[str, Any]:
    return {"python": {"callable": "a:f", "callArgs": arguments}}


def spec_of(*steps: dict[str, Any], **fields: Any) -> BatchInferenceSpec:
    named = [{"name": f"s{number}", **step} for number, step in enumerate(steps)]
    return parse(job_document("a", "in", "out", steps=named, **fields)).spec


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (spec_of(SIZE_64), spec_of(SIZE_32)),
        (spec_of(SIZE_64), spec_of(SIZE_64, {"filter": "x > 1"})),
        (spec_of({"filter": "x"}), spec_of({"filter": f"x + '{'y' * 200}'"})),
        (spec_of(own(k="s3")), spec_of(own(k="s4"))),
        (spec_of(own(k="s3")), spec_of(own(k="s3", a="s4"), {"filter": "x"})),
        (spec_of(), spec_of(resume=False, errors={"maxRows": 3})),
    ],
    ids=["value", "added step", "long value", "arguments", "arguments and a step", "same work"],
)
def test_changes_of_a_spec(
    tmp_path: Path, before: BatchInferenceSpec, now: BatchInferenceSpec, messages: Messages
) -> None:
    location = Location(str(tmp_path / "spec.json"))
    location.write(json.dumps(without_secrets(before)).encode())
    messages.check(describe_spec_change(location, work_of(now)))


def test_only_the_first_changes_are_listed(tmp_path: Path) -> None:
    location = Location(str(tmp_path / "spec.json"))
    step = {"filter": "x"}
    location.write(json.dumps(without_secrets(spec_of(step))).encode())
    text = describe_spec_change(location, work_of(spec_of(*[step] * 6)))
    assert text.count(" was not set, is ") == 3
    assert text.endswith("; and 2 more")


@pytest.mark.parametrize("content", [None, b"{", b'{"read": 1}'], ids=["gone", "cut", "other"])
def test_a_spec_that_cannot_be_read_has_no_known_changes(
    tmp_path: Path, content: bytes | None
) -> None:
    location = Location(str(tmp_path / "spec.json"))
    if content is not None:
        location.write(content)
    assert describe_spec_change(location, work_of(spec_of())) == ""


def spec(**fields: Any) -> BatchInferenceSpec:
    return parse(document("job", **{"steps": [model_step(), python_step()], **fields})).spec


def with_model(**fields: Any) -> dict[str, Any]:
    return {"steps": [model_step(**fields), python_step()]}


def with_python(**fields: Any) -> dict[str, Any]:
    return {"steps": [model_step(), python_step(**fields)]}


def with_read(**fields: Any) -> dict[str, Any]:
    return {"read": {"format": "text", "paths": ["s3://in/texts/"], **fields}}


def with_write(**fields: Any) -> dict[str, Any]:
    return {"write": {"format": "parquet", "path": "s3://out/result/", **fields}}


SAME = {
    "batch size": with_model(batchSize=7),
    "replicas": with_model(replicas={"min": 2, "max": 9}),
    "resources": with_model(resources={"gpu": 1, "cpu": 2, "memory": "8Gi"}),
    "replicas of own code": with_python(replicas={"max": 3}),
    "cluster": {"cluster": {"image": "other", "workers": {"max": 50}}},
    "mode": with_write(mode="overwrite"),
    "resume": {"resume": False},
    "changed files": with_read(onChange="recompute", onDelete="removeRows"),
    "limits of errors": {"errors": {"maxRows": 3, "maxPercent": 2}},
    "a default that is spelt out": with_write(compression="snappy"),
}
OTHER = {
    "format": {**with_read(format="binary"), "steps": []},
    "paths": with_read(paths=["s3://in/texts/", "s3://in/more/"]),
    "read options": with_read(options={"dropEmptyLines": False}),
    "no steps": {"steps": []},
    "order of steps": {"steps": [python_step(), model_step()]},
    "name of a step": with_model(name="other"),
    "model": {"steps": [python_step()]},
    "callable": with_python(callable_="module:Other"),
    "arguments": with_python(python={"callable": "module:Class", "constructorArgs": {"size": 2}}),
    "output format": with_write(format="json"),
    "output path": with_write(path="s3://out/other/"),
    "compression": with_write(compression="zstd"),
    "place of the errors": {"errors": {"maxRows": 3, "path": "s3://bad/rows/"}},
}


@pytest.mark.parametrize("fields", SAME.values(), ids=SAME)
def test_speed_settings_do_not_change_the_key(fields: dict[str, Any]) -> None:
    assert work_key(spec(**fields)) == work_key(spec())


@pytest.mark.parametrize("fields", OTHER.values(), ids=OTHER)
def test_other_settings_change_the_key(fields: dict[str, Any]) -> None:
    assert work_key(spec(**fields)) != work_key(spec())


def test_job_name_is_not_part_of_the_key() -> None:
    keys = {work_key(parse(document(name)).spec) for name in ("one", "two")}
    assert len(keys) == 1


def test_files_of_a_table_are_staged_in_the_state() -> None:
    table = spec(write={"format": "delta", "path": "s3://out/result/"})
    assert Layout.of(table).data.uri == "s3://out/result/_batchinference/staged"
    assert Layout.of(spec()).data.uri == "s3://out/result/"
