"""Transparent pixels of images are drawn over a colour, so that hidden colours do not matter."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from batchinference.pipeline.media import images
from support.inputs.media_files import png, saved
from support.inputs.read_files import pixels_of, read_image

GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6


def layered(hidden: tuple[int, int, int]) -> Image.Image:
    """Return a transparent picture with one visible pixel."""
    image = Image.new("RGBA", (8, 8), (*hidden, 0))
    image.putpixel((4, 4), (0, 0, 255, 255))
    return image


@pytest.mark.parametrize(
    ("background", "colour"),
    [("white", 255), ("black", 0), ("gray", 128), ("#336699", (51, 102, 153)), ("#369", None)],
)
def test_background_is_the_colour_behind(tmp_path: Path, background: str, colour: object) -> None:
    expected = np.broadcast_to((51, 102, 153) if colour is None else colour, 3)
    outcome = read_image(tmp_path, saved(layered((1, 2, 3)), "PNG"), background=background)
    assert pixels_of(outcome)[0, 0].tolist() == expected.tolist()


def test_half_transparent_pixels_equal_those_of_pillow(tmp_path: Path) -> None:
    random = np.random.default_rng(0).integers(0, 256, (16, 16, 4), dtype=np.uint8)
    layer = Image.fromarray(random)
    ground = Image.new("RGBA", layer.size, "#102030")
    expected = Image.alpha_composite(ground, layer)
    for mode in ("RGB", "L"):
        outcome = read_image(tmp_path, saved(layer, "PNG"), background="#102030", mode=mode)
        assert np.array_equal(pixels_of(outcome), np.asarray(expected.convert(mode)))


@pytest.mark.parametrize(
    ("content", "second"),
    [
        (png(2, 8, RGB, bytes([1, 2, 3, 4, 5, 6]), struct.pack(">3H", 1, 2, 3)), [4, 5, 6]),
        (png(2, 8, GRAY, bytes([7, 9]), struct.pack(">H", 7)), [9] * 3),
        (png(2, 4, GRAY, b"\x3f", struct.pack(">H", 3)), [255] * 3),
        (png(2, 2, GRAY, bytes([0b0110_0000]), struct.pack(">H", 1)), [170] * 3),
        (png(2, 1, GRAY, bytes([0b0100_0000]), struct.pack(">H", 0)), [255] * 3),
        (png(2, 16, GRAY, struct.pack(">2H", 40000, 65535), struct.pack(">H", 40000)), [255] * 3),
        (
            png(2, 16, RGB, struct.pack(">6H", 65535, 513, 9, 65535, 514, 9),
                struct.pack(">3H", 65535, 513, 9)),
            [255, 2, 0],
        ),
        (png(2, 8, GRAY_ALPHA, bytes([200, 0, 100, 255])), [100] * 3),
        (png(2, 16, GRAY_ALPHA, struct.pack(">4H", 9, 0, 65535, 65535)), [255] * 3),
        (png(2, 16, RGB_ALPHA, struct.pack(">8H", 9, 9, 9, 0, 65535, 0, 0, 65535)), [255, 0, 0]),
    ],
    ids=["RGB", "gray", "4 bits", "2 bits", "1 bit", "16 bits", "48 bits", "LA", "LA 32", "RGBA"],
)  # fmt: skip
def test_every_kind_of_transparency_in_png_files(
    tmp_path: Path, content: bytes, second: list[int]
) -> None:
    outcome = read_image(tmp_path, content, background="#00ff7f")
    assert pixels_of(outcome)[0].tolist() == [[0, 255, 127], second]
    assert "Composited" in outcome.warnings[0, 0]


def test_gray_that_is_multiplied_by_its_opacity(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    values = np.array([[[64, 128], [200, 255]]], np.uint8)
    tifffile.imwrite(buffer, values, photometric="minisblack", extrasamples=["assocalpha"])
    outcome = read_image(tmp_path, buffer.getvalue(), background="black", mode="L")
    assert pixels_of(outcome).tolist() == [[64, 200]]


@pytest.mark.parametrize("given", ["pixels", "bytes"])
def test_image_that_is_written_as_jpeg_is_drawn_over_white(given: str) -> None:
    layer = layered((240, 30, 10))
    value = np.asarray(layer) if given == "pixels" else saved(layer, "PNG")
    with Image.open(io.BytesIO(images.encode(value, "jpeg"))) as image:
        assert min(image.getpixel((0, 0))) > 250
