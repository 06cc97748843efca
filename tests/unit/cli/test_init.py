"""`batchinference init`: every template is a valid job."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchinference.cli import init
from batchinference.cli.init import DEFAULTS, MINILM, Answers, job_text
from batchinference.spec import parse_one
from plugins.messages import Messages
from support.program import Invoke


@pytest.mark.parametrize("kind", DEFAULTS)
def test_templates_are_valid_jobs(invoke: Invoke, directory: Path, kind: str) -> None:
    written = invoke("init", kind)
    assert (written.exit_code, written.stderr) == (0, "")
    assert "batchinference validate job.yaml" in written.stdout
    assert (directory / "steps.py").exists() == (kind == "python")
    assert invoke("validate", "--fields-only", "job.yaml").exit_code == 0
    assert all(line for line in (directory / "job.yaml").read_text().splitlines())


@pytest.mark.parametrize("kind", DEFAULTS)
def test_options_are_values_of_the_job(kind: str) -> None:
    answers = Answers("pets", "s3://a/b: {c}/*.x", "./new out", "../m #1", "no")
    job = parse_one(job_text(kind, answers))
    assert job.metadata.name == "pets"
    assert job.spec.read.model_dump()["paths"] == ["s3://a/b: {c}/*.x"]
    assert job.spec.write.path == "./new out"
    model = job.spec.steps[0].model
    assert model is None or "../m #1" in model.model_dump().values()
    if kind in ("labels", "text", "llm"):
        assert model is not None
        assert list(model.inputs.values()) == ["no"], "YAML would read no as false"


@pytest.mark.parametrize("kind", DEFAULTS)
@pytest.mark.parametrize("file", ["job.yaml", "a much longer name.yaml"])
def test_comments_name_the_file(kind: str, file: str) -> None:
    lines = job_text(kind, Answers("pets", None, "./out", None), file).splitlines()
    commands = [line for line in lines if line.startswith("#   ")]
    assert len(commands) == 3
    assert all(shlex.quote(file) in line for line in commands)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("reviews.yaml", "reviews"),
        ("My Reviews_2.yaml", "my-reviews-2"),
        ("pets/job.yaml", "pets"),
        ("pets/cats.yaml", "cats"),
        ("7/job.yaml", "my-job"),
        ("job/job.yaml", "my-job"),
        (f"{'long-' * 20}.yaml", ("long-" * 8)[:-1]),
    ],
)
def test_name_of_the_job_is_that_of_the_file_or_directory(
    invoke: Invoke, directory: Path, file: str, name: str
) -> None:
    path = directory / file
    path.parent.mkdir(exist_ok=True)
    assert invoke("init", "text", "--file", str(path)).exit_code == 0
    assert parse_one(path.read_text()).metadata.name == name


@pytest.mark.parametrize("kind", ["labels", "text", "llm", "python"])
@pytest.mark.parametrize(
    ("read", "expected"),
    [
        ("rows.csv", "csv"),
        ("s3://bucket/day=1/*.PARQUET", "parquet"),
        ("rows.jsonl.gz", "json"),
        ("notes/*.txt", "text"),
        ("rows", "csv"),
    ],
)
def test_format_of_a_table_follows_from_the_suffix(kind: str, read: str, expected: str) -> None:
    job = parse_one(job_text(kind, Answers("rows", read, "./out", None)))
    assert job.spec.read.format == expected


def test_the_model_of_the_demo_is_used_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def source() -> Any:
        job = parse_one(job_text("labels", Answers("pets", None, "./out", None)))
        return job.spec.steps[0].model.model_dump()["source"]

    assert (Path(source()) / "model.safetensors").is_file()
    monkeypatch.setattr(init, "find_spec", lambda _: None)
    assert source() == MINILM


def test_labels_of_the_option_are_needed(invoke: Invoke, messages: Messages) -> None:
    done = invoke("init", "labels", "--labels", " ,")
    assert done.exit_code == 2
    messages.check(done.stderr)


def test_labels_are_those_of_the_option() -> None:
    answers = Answers("pets", None, "./out", None, labels="a cat, no,'s,")
    model = parse_one(job_text("labels", answers)).spec.steps[0].model
    assert model.model_dump()["candidate_labels"] == ["a cat", "no", "'s"]


@pytest.mark.parametrize(
    ("kind", "read", "files", "expected"),
    [
        ("images", "photos", {f"photos/{number}.JPG": "" for number in range(25)}, (None, 5)),
        ("images", "photos", {f"photos/{number}.png": "" for number in range(100)}, (5, None)),
        ("images", "photos", {"photos/a/b.png": "", "photos/notes.txt": ""}, (None, 1)),
        ("images", "photos", {}, (5, None)),
        ("labels", "rows.csv", {"rows.csv": "text\n" * 31}, (None, 6)),
        ("labels", "rows.csv", {"rows.csv": "text\n" * 200}, (5, None)),
        ("labels", "s3://rows/", {}, (5, None)),
    ],
)
def test_limit_of_failed_rows_fits_the_input(
    directory: Path, kind: str, read: str, files: dict[str, str], expected: tuple[int, int]
) -> None:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    errors = parse_one(job_text(kind, Answers("pets", read, "./out", None))).spec.errors
    assert (errors.max_percent, errors.max_rows) == expected


@pytest.mark.parametrize(
    "options",
    [
        ["python"],
        ["text", "--file", "missing/job.yaml"],
        ["text", "--name", "My Job"],
        [],
        ["images", "--column", "review"],
        ["text", "--labels", "good"],
    ],
    ids=["existing file", "missing directory", "name", "no kind", "no column", "no labels"],
)
def test_wrong_options_are_refused(
    invoke: Invoke, directory: Path, options: list[str], messages: Messages
) -> None:
    (directory / "steps.py").write_text("mine")
    done = invoke("init", *options)
    assert done.exit_code == 2
    messages.check(done.stderr)
    assert [(path.name, path.read_text()) for path in directory.iterdir()] == [("steps.py", "mine")]


def test_questions_are_asked_on_a_terminal(
    invoke: Invoke, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(init, "sys", SimpleNamespace(stdin=terminal))
    done = invoke("init", stdin="cats\nimages\n./photos\n\n")
    assert done.exit_code == 0
    job = parse_one((directory / "job.yaml").read_text())
    assert job.spec.read.model_dump()["paths"] == ["./photos"]
    assert job.spec.steps[0].name == "classify"
    done = invoke("init", "--file", "b.yaml", stdin="text\n./reviews.csv\n\nreview\n")
    assert done.exit_code == 0
    assert "inputs: {text: review}\n" in (directory / "b.yaml").read_text()
