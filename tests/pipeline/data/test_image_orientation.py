"""Images are turned upright as their file says, in all formats that can say it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.Image import Transpose

from batchinference.pipeline.media import images
from support.inputs.media_files import exif, quarters, saved
from support.inputs.read_files import read_files

PICTURE = Image.fromarray(quarters())
TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
WRITERS = {
    "JPEG": {"quality": 95},
    "PNG": {},
    "WEBP": {"lossless": True},
    "TIFF": {},
    "TIFF with LZW": {"compression": "tiff_lzw"},
    "AVIF": {"quality": 95},
    "HEIF": {"quality": 95},
}


def write(folder: Path, writer: str, exif_data: bytes) -> Path:
    file_format = writer.split(maxsplit=1)[0]
    if file_format not in images.FORMATS:
        pytest.skip(f"{file_format} needs an optional library")
    path = folder / "a.any"
    path.write_bytes(saved(PICTURE, file_format, exif=exif_data, **WRITERS[writer]))
    return path


@pytest.mark.parametrize("writer", WRITERS)
def test_orientation_is_applied_or_ignored(tmp_path: Path, writer: str) -> None:
    for orientation, turn in TURNS.items():
        path = write(tmp_path, writer, exif(orientation))
        upright = read_files("images", path)
        stored = read_files("images", path, orientation="ignore")
        for outcome, expected in ((upright, PICTURE.transpose(turn)), (stored, PICTURE)):
            (pixels,) = outcome.column("image")
            assert pixels.shape[:2] == expected.size[::-1], orientation
            assert np.abs(pixels.astype(int) - np.asarray(expected)).mean() < 8, orientation
        assert (upright.warnings, stored.warnings) == ({(0, 0): {"Rotated": 0}}, {})


def test_size_is_that_of_the_upright_image(tmp_path: Path) -> None:
    path = write(tmp_path, "JPEG", exif(6))
    (pixels,) = read_files("images", path, size=[32, 24]).column("image")
    corners = [pixels[y, x].argmax() for y, x in ((2, 2), (2, 21), (29, 21))]
    assert (pixels.shape, corners) == ((32, 24, 3), [2, 0, 1])  # blue, red and green


@pytest.mark.parametrize("writer", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    "tags",
    [
        b"no tags",
        b"II*\0\xff\xff\xff\xff",
        b"II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x01\0\0\0zz\0\0\0\0\0\0",
        b"II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0\x01\0\0\0\x09\0\0\0",
    ],
)
def test_invalid_exif_fails_no_row(tmp_path: Path, writer: str, tags: bytes) -> None:
    outcome = read_files("images", write(tmp_path, writer, b"Exif\0\0" + tags))
    assert outcome.column("image")[0].shape == quarters().shape
    assert (outcome.bad, outcome.warnings) == ({}, {})


def test_xmp_states_an_orientation(tmp_path: Path) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="6"></x:xmpmeta>'
    (tmp_path / "a.jpg").write_bytes(saved(PICTURE, "JPEG", xmp=xmp))
    outcome = read_files("images", tmp_path)
    assert outcome.column("image")[0].shape == (64, 48, 3)
    assert outcome.warnings == {(0, 0): {"Rotated": 0}}


def test_image_that_is_written_in_another_format_is_upright() -> None:
    content = saved(PICTURE, "PNG", exif=exif(6))
    with images.open_image(images.encode(content, "jpeg")) as image:
        assert image.size == (48, 64)
