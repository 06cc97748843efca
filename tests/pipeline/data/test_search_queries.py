"""Texts and images as queries: embedded as the job embedded its rows, or rejected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from batchinference.pipeline.arrow import concat
from batchinference.pipeline.errors import BadInput, JobFailure, ModelLoad
from batchinference.pipeline.input.readers.images import ImageReader
from batchinference.pipeline.query import of_image, of_text
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.search.index import Index, open_index
from batchinference.pipeline.search.search import search
from batchinference.pipeline.steps import load_step
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import ImageOptions
from batchinference.spec.steps import Step
from support.documents.minimal import Document, python_step
from support.outputs.builders import embedded, finished_output, vectors

TEXTS = ["the cat sleeps on the sofa", "stock markets fell sharply", "a recipe for apple pie"]


def step(task: str, source: str, column: str, **fields: Any) -> Document:
    kind = "image" if task.startswith("image") else "text"
    model = {"runtime": "transformers", "task": task, "source": source, **fields}
    return {"name": "embed", "model": {**model, "inputs": {kind: column}, "output": "embedding"}}


def output_of(directory: Path, table: pa.Table, *steps: Document, **spec: Any) -> Index:
    """Run the last step over a table, write the result as a job's output, and open it."""
    done = load_step(Step.model_validate(steps[-1]), Device())(table)
    assert isinstance(done, pa.Table)
    out = finished_output(directory, done.select(["n", "embedding"]), steps=list(steps), **spec)
    return open_index(Location(out))


def texts() -> pa.Table:
    return pa.table({"line": TEXTS, "n": range(len(TEXTS))})


@pytest.mark.parametrize("fields", [{}, {"pooling": "cls", "normalize": True}], ids=["mean", "cls"])
def test_text_of_the_job_has_similarity_1(tmp_path: Path, bert: str, fields: Document) -> None:
    embed = step("feature-extraction", bert, "line", **fields)
    index = output_of(tmp_path / "out", texts(), embed)
    for number, text in enumerate(TEXTS):
        similarities, rows = search(index, of_text(index, text), 2).of(0)
        assert rows[0] == number
        assert similarities[0] == pytest.approx(1, abs=1e-5)
        assert similarities[1] < 1 - 1e-4


def test_empty_query_is_refused(tmp_path: Path, bert: str) -> None:
    index = output_of(tmp_path / "out", texts(), step("feature-extraction", bert, "line"))
    with pytest.raises(JobFailure, match="cannot be embedded: it is empty"):
        of_text(index, " ")


def test_image_query_uses_the_read_options(tmp_path: Path, vit: str) -> None:
    files = []
    for number, pixels in enumerate(abs(vectors(3 * 60 * 80 * 3, 1)).reshape(3, 60, 80, 3)):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray((pixels * 80).astype(np.uint8)).save(files[-1])
    options = {"size": [48, 48]}
    reader = ImageReader(ImageOptions.model_validate(options))
    table = concat([chunk for file in files for chunk in reader.read(Location(str(file)))])
    table = table.append_column("n", pa.array(range(3)))
    spec = {"read": {"format": "images", "paths": ["s3://in/"], "options": options}}
    index = output_of(
        tmp_path / "out", table, step("image-feature-extraction", vit, "image"), **spec
    )
    for number, file in enumerate(files):
        similarities, rows = search(index, of_image(index, Location(str(file))), 2).of(0)
        assert rows[0] == number
        assert similarities[0] == pytest.approx(1, abs=1e-5)
        assert similarities[1] < 1 - 1e-4


def test_query_of_the_wrong_kind_is_rejected(tmp_path: Path, bert: str, vit: str) -> None:
    texts_ = unembedded(tmp_path / "texts", step("feature-extraction", bert, "line"))
    with pytest.raises(BadInput, match=r"--image needs a model of texts and images, .* one text a"):
        of_image(texts_, Location("any.png"))
    images = unembedded(tmp_path / "images", step("image-feature-extraction", vit, "image"))
    with pytest.raises(BadInput, match=r"--text needs a model of texts and images, .* one image a"):
        of_text(images, "a cat")


@pytest.mark.parametrize("towers", ["clip", "siglip"])
def test_model_of_texts_and_images_takes_both(
    tmp_path: Path, tiny: Callable[[str], str], towers: str
) -> None:
    source, size = tiny(towers), {"size": [32, 32]}
    Image.fromarray((abs(vectors(48 * 48 * 3, 1)).reshape(48, 48, 3) * 80).astype(np.uint8)).save(
        tmp_path / "a.png"
    )
    reader = ImageReader(ImageOptions.model_validate(size))
    (pixels,) = reader.read(Location(str(tmp_path / "a.png")))
    spec = {"read": {"format": "images", "paths": ["s3://in/"], "options": size}}
    of_images = output_of(
        tmp_path / "images",
        pixels.append_column("n", pa.array([0])),
        step("image-feature-extraction", source, "image"),
        **spec,
    )
    of_texts = output_of(
        tmp_path / "texts",
        texts(),
        step("feature-extraction", source, "line", options={"max_length": 64}),
        **spec,
    )
    image = Location(str(tmp_path / "a.png"))
    assert search(of_images, of_image(of_images, image), 1).of(0)[0] == pytest.approx(1)
    assert search(of_texts, of_text(of_texts, TEXTS[1]), 1).of(0)[1].tolist() == [1]
    assert of_text(of_images, TEXTS[1]) == pytest.approx(of_text(of_texts, TEXTS[1]), abs=1e-5)
    assert of_image(of_texts, image) == pytest.approx(of_image(of_images, image), abs=1e-5)


def test_query_needs_an_embedding_by_one_model_step(tmp_path: Path) -> None:
    torch = {"runtime": "torch", "factory": "m:f", "inputs": {"x": "x"}, "output": "embedding"}
    first = {**step("text-classification", "org/model", "text"), "name": "first"}
    embed = step("feature-extraction", "org/model", "line")
    again = step("feature-extraction", "org/model", "embedding")
    cases: dict[str, list[Document]] = {
        "no model of the job made column 'embedding'": [],
        "step 'clean' prepares what step 'embed' embeds": [python_step("clean"), embed],
        "step 'first' prepares what step 'embed' embeds": [first, again],
        "step 'own' made the embeddings in column 'embedding' of more than a text or an image": [
            {"name": "own", "model": torch}
        ],
    }
    for number, (reason, steps) in enumerate(cases.items()):
        index = unembedded(tmp_path / str(number), *steps)
        with pytest.raises(BadInput, match=f"{reason}.*: search with --row$"):
            of_text(index, "a text")


def test_renamed_column_keeps_its_model(tmp_path: Path, bert: str) -> None:
    rename = {"name": "rename", "renameColumns": {"first": "embedding"}}
    embed = step("feature-extraction", bert, "line")
    embed["model"]["output"] = "first"
    table = embedded(vectors(2, 32))
    index = open_index(Location(finished_output(tmp_path / "out", table, steps=[embed, rename])))
    assert of_text(index, "a text").shape == (1, 32)


def unembedded(directory: Path, *steps: Document) -> Index:
    """Open an output of these steps whose embeddings are random."""
    return open_index(
        Location(finished_output(directory, embedded(vectors(2, 4)), steps=list(steps)))
    )


def test_file_other_than_an_image_is_rejected(tmp_path: Path, vit: str) -> None:
    index = unembedded(tmp_path / "out", step("image-feature-extraction", vit, "image"))
    (tmp_path / "text.png").write_text("no image")
    for name, reason in (
        ("text.png", r"text.png' cannot be read as an image: "),
        ("nowhere.png", r"nowhere.png' cannot be read: "),
    ):
        with pytest.raises(BadInput, match=reason):
            of_image(index, Location(str(tmp_path / name)))


def test_missing_model_is_rejected(tmp_path: Path) -> None:
    source = str(tmp_path / "gone")
    index = unembedded(tmp_path / "out", step("feature-extraction", source, "line"))
    with pytest.raises(ModelLoad, match=r"gone' not found"):
        of_text(index, "a text")
    with pytest.raises(ModelLoad, match=r"gone' not found"):
        of_image(index, Location("any.png"))
