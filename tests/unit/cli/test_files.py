"""Relative paths of a job start where its file lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchinference.cli.files import directory_of, read_text, with_absolute_paths
from batchinference.spec import BatchInference, SpecError
from support.documents.minimal import model_step, python_step
from support.documents.parsed import filter_step, job, nearest_step
from support.documents.runtimes import full_model

HERE = Path("/jobs/mine")


def absolute(directory: Path = HERE, **spec: Any) -> BatchInference:
    return with_absolute_paths(job(**spec), directory)


def source_of(made: BatchInference) -> str | None:
    (step,) = made.spec.steps
    return step.model.source_or_none if step.model else None


def with_source(source: str, directory: Path = HERE) -> str | None:
    step = model_step()
    step["model"]["source"] = source
    return source_of(absolute(directory, steps=[step]))


PATHS = [
    ("data", "/jobs/mine/data"),
    ("./data/*.txt", "/jobs/mine/data/*.txt"),
    ("../data", "/jobs/mine/../data"),
    ("/data", "/data"),
    ("file:///data", "/data"),
    ("s3://bucket/data/", "s3://bucket/data/"),
]


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_input(path: str, expected: str) -> None:
    made = absolute(read={"format": "text", "paths": ["/first", path]})
    assert made.spec.read.paths == ["/first", expected]


@pytest.mark.parametrize(
    ("read", "field", "expected"),
    [
        ({"format": "lance", "path": "a.lance"}, "path", "/jobs/mine/a.lance"),
        ({"format": "huggingface", "name": "./set"}, "name", "/jobs/mine/set"),
        ({"format": "huggingface", "name": "org/set"}, "name", "org/set"),
        (
            {"format": "sql", "query": "SELECT 1", "url": "sqlite:///a.db"},
            "url",
            "sqlite:////jobs/mine/a.db",
        ),
        (
            {"format": "sql", "query": "SELECT 1", "url": "postgresql://host/db"},
            "url",
            "postgresql://host/db",
        ),
    ],
)
def test_a_source_that_is_not_files(read: dict[str, str], field: str, expected: str) -> None:
    assert getattr(absolute(read=read).spec.read, field) == expected


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_output_and_errors(path: str, expected: str) -> None:
    made = absolute(write={"format": "parquet", "path": path}, errors={"path": path})
    assert (made.spec.write.path, made.spec.errors.path) == (expected, expected)


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_an_output_to_search(path: str, expected: str) -> None:
    (step,) = absolute(steps=[nearest_step(path)]).spec.steps
    assert step.nearest
    assert step.nearest.path == expected


def test_the_home_directory_is_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    made = absolute(read={"format": "text", "paths": ["~/data"]})
    assert made.spec.read.paths == ["/home/me/data"]
    assert with_source("~/model") == "/home/me/model"


def test_errors_beside_the_output_stay_there() -> None:
    assert absolute().spec.errors.path is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("./model", "/jobs/mine/model"),
        ("../model", "/jobs/mine/../model"),
        ("/models/clip", "/models/clip"),
        ("org/model", "org/model"),
        ("model", "model"),
        ("s3://models/clip/", "s3://models/clip/"),
    ],
)
def test_the_source_of_a_model(source: str, expected: str) -> None:
    assert with_source(source) == expected


def test_local_folder_takes_precedence_over_hub_model(tmp_path: Path) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert with_source("org/model", tmp_path) == str(tmp_path / "org" / "model")
    assert with_source("org/other", tmp_path) == "org/other"


@pytest.mark.parametrize("runtime", ["torch", "torchvision", "keras", "onnx"])
@pytest.mark.parametrize(
    ("folder", "expected"),
    [("", "/jobs/mine/"), ("models/", "/jobs/mine/models/"), ("s3://models/", "s3://models/")],
)
def test_the_file_of_a_model_is_always_a_path(runtime: str, folder: str, expected: str) -> None:
    model = full_model(runtime)
    file = model.get("source", "weights.pt").rpartition("/")[2]
    made = absolute(steps=[{"name": "score", "model": {**model, "source": f"{folder}{file}"}}])
    assert source_of(made) == f"{expected}{file}"


def test_a_model_of_the_hub_may_be_one_of_sentence_transformers() -> None:
    step = {"name": "embed", "model": full_model("sentenceTransformers")}
    assert source_of(absolute(steps=[step])) == "org/model"
    step["model"]["source"] = "./model"
    del step["model"]["revision"]
    assert source_of(absolute(steps=[step])) == "/jobs/mine/model"


def test_everything_else_stays_as_it_is() -> None:
    steps = [filter_step(), model_step(batchSize=7), python_step(resources={"gpu": 1})]
    before = job(steps=steps, cluster={"image": "i"})
    assert with_absolute_paths(before, HERE) == before


def test_a_file_lies_in_its_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path)
    assert directory_of("deep/job.yaml") == (tmp_path / "deep").resolve()
    assert directory_of("job.yaml") == tmp_path.resolve()


def test_a_file_that_is_a_link_lies_where_the_link_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "job.yaml").touch()
    (tmp_path / "link.yaml").symlink_to(tmp_path / "real" / "job.yaml")
    assert directory_of(str(tmp_path / "link.yaml")) == (tmp_path / "real").resolve()


def test_stdin_lies_in_the_directory_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert directory_of("-") == tmp_path


def test_file_is_read_as_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    file = tmp_path / "job.yaml"
    file.write_bytes("name: für".encode())
    assert read_text(str(file)) == "name: für"


def test_missing_file_raises_spec_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        read_text(str(tmp_path / "missing.yaml"))
