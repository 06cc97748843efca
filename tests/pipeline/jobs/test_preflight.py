"""`validate` and the start of `run` report what a job names and what does not exist."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchinference.pipeline import preflight
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.runtimes.kinds import RUNTIMES
from batchinference.spec.problems import Problem, SpecError
from support.documents.minimal import Document
from support.jobs.on_ray import job_document
from support.jobs.without_ray import invoke_without_ray

CODE = """
def length(batch):
    return batch

def stars(batch):
    return {"n": batch["star"]}
"""
JobFile = Callable[..., str]


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFile:
    """Return a function that writes a job with a CSV input and a module MODULE next to it."""
    module = f"own_{uuid.uuid4().hex[:6]}"  # no other test has imported it

    def write(steps: list[Document], **spec: Any) -> str:
        (tmp_path / "in").mkdir()
        (tmp_path / "in/a.csv").write_text("text,stars\nfine,5\n")
        (tmp_path / f"{module}.py").write_text(CODE)
        read = {"format": "csv", **spec.pop("read", {})}
        job = job_document("pets", "in", "out", read=read, steps=steps, **spec)
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job).replace("MODULE", module))
        return str(tmp_path / "job.yaml")

    monkeypatch.chdir(tmp_path)
    return write


def python(path: str, **fields: Any) -> Document:
    return {"name": "own", "python": {"callable": path, **fields}}


def model(**fields: Any) -> Document:
    return {"name": "ask", "model": {**{"inputs": {"text": "text"}, "output": "found"}, **fields}}


CHAT = {"runtime": "http", "url": "http://127.0.0.1:9/v1", "api": "chat", "name": "m"}
PROBLEMS: dict[str, tuple[Document, str]] = {
    "a path": (
        {"read": {"paths": ["nowhere"]}},
        "spec.read.paths[0]: 'TMP/nowhere' does not exist. Correct the path",
    ),
    "a glob in a directory that does not exist": (
        {"read": {"paths": ["on/*.csv"]}},
        "'TMP/on/*.csv' matches no file; there is no directory 'TMP/on'. ",
    ),
    "a column after another step": (
        {
            "steps": [
                {"name": "slim", "dropColumns": ["stars"]},
                {"name": "good", "filter": "stars > 3"},
            ]
        },
        "spec.steps[1].filter: step 'good' reads column 'stars', but the columns here are text",
    ),
    "a module": (
        {"steps": [python("nowhere:length")]},
        "spec.steps[0].python: step 'own': there is no module 'nowhere'",
    ),
    "a column in code": (
        {"steps": [python("MODULE:stars")]},
        "'MODULE:stars' reads column 'star' in line 6, but the columns here are text, stars; did",
    ),
    "an environment variable": (
        {"steps": [model(**CHAT, apiKeyEnv="NOT_SET_HERE")]},
        "spec.steps[0].model: the environment variable NOT_SET_HERE",
    ),
    "a directory for the output": (
        {"write": {"path": "job.yaml/out"}},
        "spec.write.path: 'TMP/job.yaml/out' cannot be used: 'TMP/job.yaml' is a file",
    ),
    "a measure of numbers": (
        {"gate": {"rows": 1, "expect": "mean(text) > 3"}},
        "spec.gate.expect: mean(text) cannot be computed: the values are string, and mean takes "
        "numbers. Write mean(float(text)) if each is a number, or mean(len(text)) for the length",
    ),
    "a key that can be compared": (
        {
            "steps": [{"name": "half", "addColumns": {"half": "stars / 2"}}],
            "write": {"format": "delta", "mode": "merge", "key": ["half"]},
        },
        "spec.write.key: column 'half' is double. A key has whole numbers, texts, dates, ",
    ),
    "a key that is a text": (
        {
            "read": {"options": {"types": {"text": "list<string>"}}},
            "write": {"format": "webdataset", "keyColumn": "text"},
        },
        "spec.write.keyColumn: column 'text' is list<item: string>. A key is a text or a number. ",
    ),
}


@pytest.mark.parametrize(("fields", "message"), PROBLEMS.values(), ids=PROBLEMS)
def test_missing_requirements_are_reported_before_ray_starts(
    job_file: JobFile, tmp_path: Path, fields: Any, message: str
) -> None:
    file = job_file(**{"steps": [], **fields})
    before = sorted(tmp_path.rglob("*"))
    (module,) = (path.stem for path in tmp_path.glob("own_*.py"))
    message = message.replace("TMP", str(tmp_path)).replace("MODULE", module)
    checked = invoke_without_ray("validate", file)
    assert (checked.exit_code, checked.stdout) == (2, "")
    assert message in checked.stderr
    assert sorted(tmp_path.rglob("*")) == before
    commands = [] if "cannot be used" in message else ["run"]
    if "write.path" not in message:
        commands.append("preview")
    for command in commands:
        done = invoke_without_ray(command, file)
        assert done.exit_code == 2
        assert re.sub(r"^spec\.steps\[0\]\.\w+: ", "", message) in done.stderr
        assert "starting Ray" not in done.stderr


@pytest.mark.parametrize(
    ("file_format", "content", "problem"),
    [
        (
            "parquet",
            b"text,stars\na,1\n",
            "is no Parquet file (b'text,stars\\na,1\\n'...). Set read.format to csv",
        ),
        ("parquet", b"PK\x03\x04", "is a zip archive or a workbook. "),
        ("json", b"PK\x03\x04", "is a zip archive or a workbook. "),
        ("json", b"PAR1\x15", "is a Parquet file. Read it with the format parquet"),
        ("parquet", b"PAR1\x15 damaged", None),
        ("json", b"a;b\n1;2\n", "is no JSON (b'a;b\\n1;2\\n'...). Set read.format to csv"),
        ("json", b"Hi, all.\nA text", "is no JSON (b'Hi, all.\\nA text'...). Correct read.format"),
        ("json", b"\xff\xd8,J\n,F", "is no JSON (b'\\xff\\xd8,J\\n,F'...). Correct read.format"),
        ("json", b"damaged\n{}\n", None),
    ],
)
def test_files_of_another_format_are_reported(
    job_file: JobFile, tmp_path: Path, file_format: str, content: bytes, problem: str | None
) -> None:
    """In a run, each is a failed row."""
    file = job_file([], read={"format": file_format, "paths": ["in/*.x"]})
    for name in ("b", "c"):
        (tmp_path / f"in/{name}.x").write_bytes(content)
    done = invoke_without_ray("validate", file)
    shown = f"read.paths: {tmp_path}/in/b.x {problem}"
    assert (done.exit_code, shown in done.stderr) == ((2, True) if problem else (0, False))
    (tmp_path / "in/c.x").write_bytes(b"")
    assert invoke_without_ray("validate", file).exit_code == 0


def test_a_missing_package_is_reported(job_file: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUNTIMES, "onnx", replace(RUNTIMES["onnx"], library="not_there"))
    done = invoke_without_ray("validate", job_file([model(runtime="onnx", source="a.onnx")]))
    assert done.exit_code == 2
    assert "the runtime 'onnx' needs the package not-there: pip install" in done.stderr


def test_all_problems_are_reported_at_once(job_file: JobFile) -> None:
    steps = [python("nowhere:f"), model(runtime="onnx", source="./a.onnx")]
    done = invoke_without_ray("validate", job_file(steps, write={"path": "job.yaml/out"}))
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 3


def test_an_output_that_is_the_input_is_one_problem(job_file: JobFile) -> None:
    """The advice to append, which fits other files in an output, would be wrong."""
    done = invoke_without_ray("validate", job_file([], write={"path": "in"}))
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1


def test_error_of_storage_is_a_problem(job_file: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "/data")

    monkeypatch.setattr(preflight, "open_input", refuse)
    done = invoke_without_ray("validate", job_file([]))
    assert (done.exit_code, "PermissionError" in done.stderr) == (2, True)


def test_cause_of_a_failure_does_not_hide_it(
    job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise BadInput("the catalog refused") from SpecError([Problem("spec.other", "no such")])

    monkeypatch.setattr(preflight, "open_input", refuse)
    done = invoke_without_ray("validate", job_file([]))
    assert (done.exit_code, "the catalog refused" in done.stderr) == (2, True)


def test_a_job_without_problems_is_valid(job_file: JobFile) -> None:
    steps = [python("MODULE:length"), {"name": "good", "filter": "stars > 3"}]
    done = invoke_without_ray("validate", job_file(steps))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.endswith("job.yaml: pets is valid\n")


def test_a_complete_output_needs_no_ray(job_file: JobFile) -> None:
    file = job_file([])
    assert "starting Ray" in invoke_without_ray("run", file).stderr
    again = invoke_without_ray("run", file)
    assert again.exit_code == 0
    assert "the output was complete already" in again.stderr
    assert "starting Ray" not in again.stderr
