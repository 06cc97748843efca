"""Images whose end is missing: failed rows, or what is left of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from batchinference.pipeline.media import images
from support.inputs.media_files import exif, saved
from support.inputs.photographs import photograph
from support.inputs.read_files import Outcome
from support.inputs.read_files import read_image as read

PICTURE = Image.fromarray(photograph("chelsea")).resize((200, 150))
WRITERS: dict[str, tuple[Image.Image, dict[str, Any]]] = {
    "JPEG": (PICTURE, {"quality": 90}),
    "JPEG, progressive": (PICTURE, {"progressive": True}),
    "JPEG, gray": (PICTURE.convert("L"), {}),
    "JPEG, CMYK": (PICTURE.convert("CMYK"), {}),
    "PNG": (PICTURE, {}),
    "PNG, transparent": (PICTURE.convert("RGBA").rotate(20), {}),
    "WEBP": (PICTURE, {}),
    "WEBP, lossless": (PICTURE, {"lossless": True}),
    "WEBP, transparent": (PICTURE.convert("RGBA").rotate(20), {}),
    "GIF": (PICTURE, {"interlace": 0}),
    "TIFF": (PICTURE, {}),
    "BMP": (PICTURE, {}),
    "PPM": (PICTURE, {}),
    "JPEG2000": (PICTURE, {}),
    "AVIF": (PICTURE, {}),
    "HEIF": (PICTURE, {}),
}
BLURRED = ("JPEG, progressive", "JPEG2000")
"""The files of which the first half shows the whole picture, with less detail."""


def written(writer: str) -> bytes:
    file_format = writer.split(",", maxsplit=1)[0]
    if file_format not in images.FORMATS:
        pytest.skip(f"{file_format} needs an optional library")
    image, options = WRITERS[writer]
    return saved(image, file_format, **options)


def pixels(outcome: Outcome) -> np.ndarray:
    (found,) = outcome.column("image")
    return np.asarray(found, int)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("size", [None, [75, 100]])
def test_half_an_image_fails_or_is_read(
    tmp_path: Path, writer: str, size: list[int] | None
) -> None:
    content = written(writer)
    half = content[: len(content) // 2]
    assert list(read(tmp_path, half, size=size).bad) == [(0, 0)]
    accepted = read(tmp_path, half, size=size, truncated="accept")
    assert accepted.bad == {}
    assert "Truncated" in accepted.warnings[0, 0]
    whole, found = pixels(read(tmp_path, content, size=size)), pixels(accepted)
    assert found.shape == whole.shape
    rows = whole.shape[0] if writer in BLURRED else whole.shape[0] // 4
    begin = 3 * whole.shape[0] // 4 if writer == "BMP" else 0  # it begins at the bottom
    difference = np.abs(found - whole)[begin : begin + rows]
    assert difference.mean() < 12


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("colour", ["photograph", "one colour"])
def test_jpeg_without_its_last_bytes_is_complete(tmp_path: Path, missing: int, colour: str) -> None:
    picture = PICTURE if colour == "photograph" else Image.new("RGB", (600, 400), (200, 10, 10))
    content = saved(picture, "JPEG")
    outcome = read(tmp_path, content[:-missing], truncated="accept")
    assert np.array_equal(pixels(outcome), pixels(read(tmp_path, content)))
    assert outcome.warnings == {(0, 0): {"Truncated": 0}}


@pytest.mark.parametrize(
    "content",
    [b"", b"no image", b"\xff\xd8\xff\xd9",
     saved(PICTURE, "JPEG")[:300], saved(PICTURE, "PNG")[:60],
     b"RIFF\xff\xff\xff\x7fWEBPVP8 " + b"\xff" * 100,
     b"\0\0\0\x01ftypheic\x7f" + b"\xff" * 7 + b"\0" * 60],
    ids=["empty", "text", "no pixels", "only headers", "no data", "huge WebP", "huge HEIC"],
)  # fmt: skip
def test_file_without_pixels_is_a_failed_row(tmp_path: Path, content: bytes) -> None:
    assert list(read(tmp_path, content, truncated="accept").bad) == [(0, 0)]


def test_complete_images_have_no_warning(tmp_path: Path) -> None:
    for writer in ("JPEG", "PNG", "WEBP", "GIF", "TIFF"):
        assert read(tmp_path, written(writer), truncated="accept").warnings == {}, writer


def test_black_pixels_before_the_damage_are_read(tmp_path: Path) -> None:
    random = np.random.default_rng(0).integers(0, 2, (300, 200), dtype=np.uint8)
    random[:150] = 0
    content = saved(Image.fromarray(random * 255), "BMP")
    assert read(tmp_path, content[: len(content) - 20_000], truncated="accept").bad == {}


def test_cut_tiff_file_is_upright(tmp_path: Path) -> None:
    content = saved(PICTURE, "TIFF", exif=exif(6))
    for orientation, shape in (("apply", (200, 150, 3)), ("ignore", (150, 200, 3))):
        outcome = read(
            tmp_path, content[: len(content) * 3 // 4], truncated="accept", orientation=orientation
        )
        assert pixels(outcome).shape == shape


def test_animation_that_is_cut_in_its_first_frame(tmp_path: Path) -> None:
    frames = [PICTURE.rotate(90), PICTURE.rotate(180)]
    content = saved(PICTURE, "WEBP", save_all=True, append_images=frames, lossless=True)
    outcome = read(tmp_path, content[: len(content) // 6], truncated="accept")
    assert np.abs(pixels(outcome) - np.asarray(PICTURE))[:30].mean() < 12


def test_limit_of_pixels_applies_to_cut_images(tmp_path: Path) -> None:
    half = written("JPEG")[:3000]
    (error,) = read(tmp_path, half, truncated="accept", maxPixels=1000).bad.values()
    assert "maxPixels" in error
