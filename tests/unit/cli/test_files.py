"""Relative paths in a job are relative to the directory of the job file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchinference.api.job_files import directory_of, read_file_or_stdin, with_absolute_paths
from batchinference.spec import BatchInference
from support.documents.minimal import model_step, python_step
from support.documents.parsed import filter_step, job
from support.documents.runtimes import full_model

HERE = Path("/jobs/mine")
SQL = {"format": "sql", "query": "SELECT 1"}


def absolute(directory: Path = HERE, **spec: Any) -> BatchInference:
    return with_absolute_paths(job(**spec), directory)


def source_of(made: BatchInference) -> str | None:
    (step,) = made.spec.steps
    return getattr(step.model, "source", None)


def with_source(source: str, directory: Path = HERE) -> str | None:
    step = model_step()
    step["model"]["source"] = source
    return source_of(absolute(directory, steps=[step]))


def test_path_in_constructor_arguments_is_made_absolute() -> None:
    arguments = {"source": "./models/a", "name": "org/model", "size": 2}
    step = python_step()
    step["python"]["constructorArgs"] = arguments
    (made,) = absolute(steps=[step]).spec.steps
    assert made.python.constructor_args == {**arguments, "source": "/jobs/mine/models/a"}


PATHS = [
    ("data", "/jobs/mine/data"),
    ("./data/*.txt", "/jobs/mine/data/*.txt"),
    ("../data", "/jobs/mine/../data"),
    ("/data", "/data"),
    ("file:///data", "/data"),
    ("s3://bucket/data/", "s3://bucket/data/"),
]


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_paths_of_a_job_are_made_absolute(path: str, expected: str) -> None:
    spec = absolute(
        read={"format": "text", "paths": ["/first", path]},
        steps=[{**model_step(), "cache": {"path": path}}],
        write={"format": "parquet", "path": path},
        errors={"path": path},
    ).spec
    assert spec.read.paths == ["/first", expected]
    assert spec.steps[0].cache is not None
    assert spec.steps[0].cache.path == spec.write.path == spec.errors.path == expected


@pytest.mark.parametrize(
    ("read", "field", "expected"),
    [
        ({"format": "lance", "path": "a.lance"}, "path", "/jobs/mine/a.lance"),
        ({"format": "huggingface", "name": "./set"}, "name", "/jobs/mine/set"),
        ({"format": "huggingface", "name": "org/set"}, "name", "org/set"),
        ({**SQL, "url": "sqlite:///a.db"}, "url", "sqlite:////jobs/mine/a.db"),
        ({**SQL, "url": "postgresql://host/db"}, "url", "postgresql://host/db"),
    ],
)
def test_path_of_a_source_is_made_absolute(read: dict[str, str], field: str, expected: str) -> None:
    assert getattr(absolute(read=read).spec.read, field) == expected


def test_path_of_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    made = absolute(read={"format": "text", "paths": ["~/data"]})
    assert made.spec.read.paths == ["/home/me/data"]
    assert with_source("~/model") == "/home/me/model"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("./model", "/jobs/mine/model"),
        ("../model", "/jobs/mine/../model"),
        *((same, same) for same in ("/models/clip", "org/model", "model", "s3://models/clip/")),
    ],
)
def test_path_of_a_model_is_made_absolute(source: str, expected: str) -> None:
    assert with_source(source) == expected


def test_path_of_a_local_model_takes_precedence_over_the_hub(tmp_path: Path) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert with_source("org/model", tmp_path) == str(tmp_path / "org" / "model")
    assert with_source("org/other", tmp_path) == "org/other"


@pytest.mark.parametrize("runtime", ["torch", "torchvision", "onnx"])
@pytest.mark.parametrize(
    ("folder", "expected"),
    [("", "/jobs/mine/"), ("models/", "/jobs/mine/models/"), ("s3://models/", "s3://models/")],
)
def test_path_of_a_model_file_is_made_absolute(runtime: str, folder: str, expected: str) -> None:
    model = full_model(runtime)
    file = model.get("source", "weights.pt").rpartition("/")[2]
    made = absolute(steps=[{"name": "score", "model": {**model, "source": f"{folder}{file}"}}])
    assert source_of(made) == f"{expected}{file}"


def test_path_of_sentence_transformers_is_made_absolute() -> None:
    step = {"name": "embed", "model": full_model("sentenceTransformers")}
    assert source_of(absolute(steps=[step])) == "org/model"
    step["model"]["source"] = "./model"
    del step["model"]["revision"]
    assert source_of(absolute(steps=[step])) == "/jobs/mine/model"


def test_job_without_relative_paths_is_unchanged() -> None:
    steps = [filter_step(), model_step(batchSize=7), python_step(resources={"gpu": 1})]
    before = job(steps=steps, cluster={"image": "i"})
    assert with_absolute_paths(before, HERE) == before


def test_directory_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "job.yaml").touch()
    (tmp_path / "link.yaml").symlink_to(tmp_path / "deep" / "job.yaml")
    monkeypatch.chdir(tmp_path)
    deep = (tmp_path / "deep").resolve()
    assert directory_of("deep/job.yaml") == directory_of("link.yaml") == deep
    assert directory_of("job.yaml") == directory_of("-") == tmp_path.resolve()


def test_file_is_read_as_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    (tmp_path / "job.yaml").write_bytes("name: für".encode())
    assert read_file_or_stdin(str(tmp_path / "job.yaml")) == "name: für"
