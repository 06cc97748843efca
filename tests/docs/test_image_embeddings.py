"""The example image-embeddings: each image is embedded, and equal images are nearest."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchinference.api.files import with_absolute_paths
from batchinference.spec import BatchInference, parse
from support.documents.pages import ROOT
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import rows_of

EXAMPLE = ROOT / "examples" / "image-embeddings"
SHAPES, COLOURS = 3, 8


def job_in(directory: Path, job: dict[str, Any]) -> BatchInference:
    return with_absolute_paths(parse(job), directory)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the example's directory with its input, its model and its output."""
    directory = tmp_path_factory.mktemp("example") / "image-embeddings"
    shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("data", "model", "out"))
    runpy.run_path(str(directory / "prepare.py"), run_name="__main__")
    job = yaml.safe_load((directory / "job.yaml").read_text())
    assert run_without_ray(job_in(directory, job), rows_per_task=200).state == "succeeded"
    return directory


def test_images_are_embedded(example: Path) -> None:
    assert len(rows_of(example / "out")) == len(list((example / "data").glob("*/*")))
    folders = [row["folder"] for row in rows_of(example / "out")]
    assert folders.count("circle") == COLOURS
    assert len(set(folders)) >= SHAPES
