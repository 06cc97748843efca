"""Image output: one file per row, whose pixels Pillow reads back."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from ray.data.extensions import ArrowVariableShapedTensorArray

from batchinference.pipeline.arrow import concat, to_column
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.preview import first_rows
from batchinference.pipeline.output.writers import writer_for
from batchinference.pipeline.output.writers.images import MAX_NAME, file_name
from support.documents.parsed_write import write_of
from support.tiers import examples

RNG = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def files(table: pa.Table, **fields: str) -> list[tuple[str, bytes]]:
    writer = writer_for(write_of("images", **fields))
    return [(ending, bytes(content)) for ending, content in writer.files(table)]


def decoded(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image)


def test_pixels_are_written() -> None:
    for shape in ((4, 5), (4, 5, 3), (4, 5, 4)):  # gray, RGB, RGBA
        images = np.stack([pixels(*shape), pixels(*shape)])
        table = pa.table({"image": to_column(images)})
        assert [ending for ending, _ in files(table, fileFormat="webp")] == [".webp"] * 2
        found = files(table, fileFormat="png")  # lossless
        assert [ending for ending, _ in found] == [".png"] * 2
        for (_, content), image in zip(found, images, strict=True):
            assert np.array_equal(decoded(content), image), shape


def test_gray_images_and_several_sizes_are_written() -> None:
    image = pixels(3, 2, 1)
    ((_, content),) = files(pa.table({"image": to_column(image[None])}))
    assert np.array_equal(decoded(content), image[:, :, 0])
    column = ArrowVariableShapedTensorArray.from_numpy([pixels(2, 3, 3), pixels(5, 1, 3)])
    found = files(pa.table({"image": column}))
    assert [decoded(content).shape for _, content in found] == [(2, 3, 3), (5, 1, 3)]


def test_row_without_an_image_writes_no_file() -> None:
    with_one = pa.table({"image": to_column(pixels(1, 2, 2, 3)), "n": [0]})
    assert len(files(concat([with_one, pa.table({"n": [1]}), with_one]))) == 2


def test_encoded_bytes_are_kept_or_converted() -> None:
    buffer = io.BytesIO()
    Image.fromarray(pixels(8, 8, 4)).save(buffer, "png")
    png = buffer.getvalue()
    table = pa.table({"image": [png]})
    assert files(table) == [(".png", png)]
    ((ending, jpeg),) = files(table, fileFormat="jpeg")
    assert ending == ".jpg"
    with Image.open(io.BytesIO(jpeg)) as image:
        assert (image.format, image.mode) == ("JPEG", "RGB")


def test_column_without_images_is_rejected() -> None:
    for column in (
        to_column(np.zeros((1, 4, 4, 3), np.float32)),
        to_column(np.zeros((1, 4, 4, 7), np.uint8)),  # seven channels
        pa.array(["text"]),
        pa.array([b"no image"]),
    ):
        with pytest.raises(BadOutput, match=r"column 'image'.*no image"):
            files(pa.table({"image": column}))


def test_name_column_is_part_of_the_file_name() -> None:
    paths = ["s3://in/cats/tom.jpg", None, "../../etc/x y"]
    table = pa.table({"image": to_column(pixels(3, 2, 2, 3)), "path": paths})
    endings = [ending for ending, _ in files(table, nameColumn="path")]
    assert endings == ["-tom.png", ".png", "-x_y.png"]


@settings(max_examples=examples(100))
@given(st.text(max_size=300))
def test_file_names_are_safe(name: str) -> None:
    safe = file_name(name)
    assert re.fullmatch(r"[^./\\:*?\"<>|\s\x00-\x1f\x7f-\x9f]*", safe)
    assert len(safe.encode()) <= MAX_NAME


def test_file_names_keep_letters_of_all_languages() -> None:
    kept = {"图片.jpg": "图片", "a/ü b.png": "ü_b", "हिन्दी.png": "हिन्दी", "图" * 99: "图" * 33}
    kept["a\u202egpj.png"] = "a_gpj"
    assert {name: file_name(name) for name in kept} == kept


def test_first_rows_describe_images(tmp_path: Path) -> None:
    ((ending, content),) = files(pa.table({"image": to_column(pixels(1, 4, 5, 3))}))
    (tmp_path / f"part-0{ending}").write_bytes(content)
    (row,) = first_rows(write_of("images", tmp_path), 5)
    assert row == {"file": str(tmp_path / "part-0.png"), "image": "5 x 4, RGB"}
