"""Each job of these pages runs as it stands."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import onnx
import pytest
import torch
import torchvision
from onnx import TensorProto, helper
from PIL import Image
from skimage import data

from support import tiny_models
from support.documentation import jobs, name_of
from support.documents import Document
from support.examples import run_here
from support.outputs import rows_of

PHOTOGRAPHS = ("astronaut", "chelsea", "coffee")
EXPECTED = {
    "docs/jobs.md": {"reading": 3, "torch-model": 3, "steps": 2, "bad-rows": 2},
    "docs/models.md": {"generation": 4, "photos": 3, "quality": 3},
    "docs/steps.md": {"rows": 28, "legacy": 3},
    "docs/exactly-once.md": {"nightly": 3},
}
"""Rows that each job writes."""
JOBS = [pytest.param(page, job, id=name_of(job)) for page in EXPECTED for job in jobs(page)]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models that the pages name, as small as they can be."""
    folder = tmp_path_factory.mktemp("models")
    for name, kind in {"clip": "clip", "chat": "chatter", "seer": "seer"}.items():
        (folder / name).mkdir()
        tiny_models.write(kind, folder / name)
    weights = torchvision.models.mobilenet_v3_small(weights=None).state_dict()
    torch.save(weights, folder / "mobilenet.pt")
    onnx.save(mean_model("embedding", 1024, "quality"), str(folder / "quality.onnx"))
    return folder


@pytest.fixture
def directory(tmp_path: Path, models: Path) -> Path:
    """The files that the page names."""
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / "may.csv").write_text("item;price\npen;2\nink;7\n")
    (tmp_path / "sales" / "june.csv").write_text("item;price\npaper;4\n")
    (tmp_path / "photos").mkdir()
    for name in PHOTOGRAPHS:
        Image.fromarray(getattr(data, name)()).save(tmp_path / "photos" / f"{name}.jpg")
    for topic, lines in {
        "cats": "# cats\ncats sleep long\nmeow\n",
        "dogs": "dogs run a lot\n",
    }.items():
        (tmp_path / "texts" / topic).mkdir(parents=True)
        (tmp_path / "texts" / topic / "notes.txt").write_text(lines)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "monday.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "events.jsonl").write_text('{"id": 1}\n{"id": \n{"id": 3}\n')
    (tmp_path / "models").symlink_to(models)
    return tmp_path


@pytest.mark.parametrize("page", EXPECTED)
def test_a_page_has_the_jobs_that_are_expected(page: str) -> None:
    assert [name_of(job) for job in jobs(page)] == list(EXPECTED[page])


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(("page", "job"), JOBS)
def test_a_job_of_a_page_runs(page: str, job: Document, directory: Path) -> None:
    assert run_here(directory, job).report.message is None
    found = written(directory / job["spec"]["write"]["path"])
    assert len(found) == EXPECTED[page][name_of(job)]


def mean_model(column: str, width: int, result: str) -> onnx.ModelProto:
    """The mean of each row's numbers."""
    node = helper.make_node("ReduceMean", [column], [result], axes=[1], keepdims=0)
    values = helper.make_tensor_value_info(column, TensorProto.FLOAT, ["rows", width])
    means = helper.make_tensor_value_info(result, TensorProto.FLOAT, ["rows"])
    graph = helper.make_graph([node], "mean", [values], [means])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def written(output: Path) -> list[Document]:
    packed = [gzip.decompress(file.read_bytes()) for file in output.glob("*.jsonl.gz")]
    lines = b"".join(packed).splitlines()
    separated = (csv.DictReader(file.open()) for file in output.glob("*.csv"))
    tables = [row for reader in separated for row in reader]
    return rows_of(output) + [json.loads(line) for line in lines] + tables
