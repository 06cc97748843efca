"""Each example runs without Ray and writes the documented rows.

The example `vllm` runs on Ray (pipeline/jobs/test_vllm_jobs.py).
"""

from __future__ import annotations

import csv
import functools
import json
import re
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torchvision
from PIL import Image

from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import load_step
from batchinference.spec.report import JobState
from batchinference.spec.steps import Step
from support.jobs.examples import EXAMPLES, job_of, module_of, prepared, run_example
from support.jobs.without_ray import in_this_process, without_starting_ray
from support.outputs.rows import rows_of
from support.servers.openai import openai_server, save_language_model
from support.servers.scripted_http import answering, serving

Row = dict[str, Any]


def rows_made_by(copy: Path) -> list[Row]:
    report = run_example(copy)
    assert report.state is JobState.SUCCEEDED, report.message
    return rows_of(copy / "out")


def test_modules_of_examples_have_different_names() -> None:
    names = Counter(path.name for path in EXAMPLES.glob("*/*.py") if path.name != "prepare.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_readme_lists_each_example() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[([\w-]+)\]\(([\w-]+)/(?:job|schedule)\.yaml\)", page, re.MULTILINE)
    names = sorted(path.parent.name for path in EXAMPLES.glob("*/*.yaml"))
    assert listed == [(name, name) for name in names]


@pytest.mark.parametrize(
    ("name", "rows", "column"),
    [
        ("cpu-preprocessing", "data/*", "embedding"),
        ("image-captioning", "data/*", "caption"),
        ("image-embeddings", "data/*/*", "embedding"),
        ("model-chain", 400, "words"),
        ("npu", None, "embedding"),
        ("sharded-model", 4, "continued"),
        ("torch-predictor", None, "probabilities"),
    ],
)
def test_example_adds_its_column_to_each_row(
    tmp_path: Path, name: str, rows: str | int | None, column: str
) -> None:
    """`rows` is their number, or the pattern of the input files with one row each."""
    copy = prepared(name, tmp_path)
    found = rows_made_by(copy)
    assert len(found) == (len([*copy.glob(rows)]) if isinstance(rows, str) else rows or len(found))
    assert found
    assert all(row[column] for row in found)


def test_legacy_predictor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = prepared("legacy-predictor", tmp_path)
    legacy = module_of("legacy-predictor", "legacy")
    monkeypatch.setattr(legacy, "seeded_resnet152", functools.cache(legacy.seeded_resnet152))
    rows = rows_made_by(copy)
    assert len(rows) == len(list((copy / "data").iterdir()))
    weights = torchvision.models.ResNet152_Weights.DEFAULT
    predictor = legacy.TorchPredictor(legacy.seeded_resnet152, weights)
    probabilities = predictor.predict_batch([Image.open(rows[0]["path"])])
    assert rows[0]["predicted_class_idx"] == int(probabilities.argmax())
    assert rows[0]["confidence"] == pytest.approx(float(probabilities.max()), abs=1e-4)


def test_own_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = prepared("own-function", tmp_path)
    with in_this_process(), without_starting_ray():
        runpy.run_path(str(copy / "analyse.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for words in (["snow.jpg", "Tyrol", "white"], ["forest.jpg", "Black Forest", "green"]):
        assert [line for line in printed.splitlines() if all(word in line for word in words)]
    assert "night.jpg" not in printed
    captions = {Path(row["path"]).stem: row["caption"] for row in rows_of(copy / "out")}
    assert len(captions) == 5
    assert captions["night"] == "a dark picture, mostly black"


def test_text_generation(tmp_path: Path) -> None:
    copy = prepared("text-generation", tmp_path)
    rows = rows_made_by(copy)
    assert len(rows) == 12
    assert all(row["sentence"] for row in rows)
    assert len({row["sentence"] for row in rows}) > 6
    step = job_of(copy)["spec"]["steps"][0]
    step["model"]["source"] = str(copy / "model")
    again = load_step(Step.model_validate(step), Device())(pa.Table.from_pylist(rows[:2]))
    assert isinstance(again, pa.Table)
    assert again.to_pylist() == rows[:2], "the same seed writes the same"


def test_structured_answers(tmp_path: Path) -> None:
    copy = prepared("structured-answers", tmp_path)
    job = job_of(copy)
    judged = {"label": "bad", "score": 0.25, "product": None}
    answer = {"choices": [{"message": {"content": json.dumps(judged)}}]}
    with serving(answering(200, answer)) as server:
        job["spec"]["steps"][0]["model"]["url"] = server.url
        report = run_example(copy, job)
    assert report.state is JobState.SUCCEEDED, report.message
    rows = rows_of(copy / "out")
    assert [row["judgement"] for row in rows] == [judged] * 3
    assert all(row["unhappy"] for row in rows)


def test_openai_batch(tmp_path: Path) -> None:
    copy = prepared("openai-batch", tmp_path)
    job = job_of(copy)
    with serving(answering(200, {"choices": [{"message": {"content": "A."}}]})) as server:
        job["spec"]["steps"][0]["model"]["url"] = f"{server.url}/v1"
        report = run_example(copy, job)
    assert report.state is JobState.SUCCEEDED, report.message
    rows = rows_of(copy / "out")
    assert sorted(row["custom_id"] for row in rows) == [f"request-{n}" for n in range(4)]
    assert (copy / "out" / "_errors.jsonl").read_text() == ""
    assert {request.body["model"] for request in server.requests} == {"model"}


@pytest.mark.long("serve")
def test_openai_endpoint(tmp_path: Path) -> None:
    copy = prepared("openai-endpoint", tmp_path)
    model = tmp_path / "served"
    model.mkdir()
    save_language_model(model)
    job = job_of(copy)
    with openai_server(model) as url:
        job["spec"]["steps"][0]["model"] |= {"url": url, "name": str(model)}
        report = run_example(copy, job)
    assert report.state is JobState.SUCCEEDED, report.message
    (file,) = (copy / "out").glob("*.csv")
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert sorted(int(row["id"]) for row in rows) == list(range(16))
    assert all(row["judgement"] for row in rows)
