"""The example image-search: embed images, search with the command, and search with a step."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import Result

from batchinference.api.files import with_absolute_paths
from batchinference.spec import BatchInference, parse
from support.documents.pages import ROOT, jobs
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import rows_of
from support.program import run_program

EXAMPLE = ROOT / "examples" / "image-search"
SHAPES, COLOURS = 3, 8


def search(output: Path | str, *arguments: str) -> Result:
    return run_program("search", str(output), *arguments, "-o", "json")


def hits(output: Path | str, *arguments: str) -> list[dict[str, Any]]:
    result = search(output, *arguments)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def job_in(directory: Path, job: dict[str, Any]) -> BatchInference:
    return with_absolute_paths(parse(job), directory)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the example's directory with its input, its model and its output."""
    directory = tmp_path_factory.mktemp("example") / "image-search"
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


@pytest.mark.parametrize("image", ["circle/000.png", "triangle/007.png", "photograph/coffee.jpg"])
def test_image_finds_itself_first(example: Path, image: str) -> None:
    path = str(example / "data" / image)
    as_file = hits(
        example / "out", "--model", str(example / "job.yaml"), "--image", path, "-k", "4"
    )
    assert as_file[0]["columns"] == {"path": path, "folder": Path(image).parent.name}
    assert as_file[0]["similarity"] == pytest.approx(1, abs=1e-5)
    assert as_file[1]["similarity"] < 1 - 1e-4
    as_row = hits(example / "out", "--row", f"path={path}", "-k", "4")
    assert [hit["row"] for hit in as_row] == [hit["row"] for hit in as_file]
    assert hits(example / "out", "--row", str(as_row[0]["row"]), "-k", "4") == as_row


def test_text_is_embedded_by_the_text_encoder(example: Path) -> None:
    import torch
    from transformers import AutoTokenizer, CLIPModel

    text = "a red circle on blue"
    model = CLIPModel.from_pretrained(example / "model").eval()
    tokens = AutoTokenizer.from_pretrained(example / "model")(text, return_tensors="pt")
    with torch.inference_mode():
        query = model.get_text_features(**tokens).pooler_output[0].numpy()
    rows = pq.read_table(example / "out", columns=["path", "embedding"]).to_pylist()
    similarities = {
        row["path"]: np.dot(row["embedding"], query)
        / (np.linalg.norm(row["embedding"]) * np.linalg.norm(query))
        for row in rows
    }
    found = {
        hit["columns"]["path"]: hit["similarity"]
        for hit in hits(example / "out", "--trust-output", "--text", text, "-k", "100")
    }
    assert found == pytest.approx(similarities, abs=1e-5)


def test_where_filters_the_rows(example: Path) -> None:
    path = example / "data" / "circle" / "000.png"
    query = ["--trust-output", "--image", str(path), "--where", "folder == 'square'"]
    found = hits(example / "out", *query, "-k", "99")
    assert len(found) == COLOURS
    assert {hit["columns"]["folder"] for hit in found} == {"square"}


def test_step_of_the_page_finds_the_same_rows_as_the_command(example: Path) -> None:
    (job,) = jobs("docs/search.md")
    assert run_without_ray(job_in(example, job), rows_per_task=200).state == "succeeded"
    rows = rows_of(example / "like-these")
    assert len(rows) == COLOURS
    for row in rows:
        found = hits(example / "out", "--row", f"path={row['path']}", "-k", "3")
        assert [match["path"] for match in row["matches"]] == [h["columns"]["path"] for h in found]
        assert [match["similarity"] for match in row["matches"]] == pytest.approx(
            [hit["similarity"] for hit in found], abs=1e-5
        )
