"""Images in outputs: Pillow reads back the pixels that were encoded."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from batchinference.pipeline.media.images import encode

RNG = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 3), (4, 5, 4)])
def test_pixels_are_written(shape: tuple[int, ...]) -> None:
    image = pixels(*shape)
    with Image.open(io.BytesIO(encode(image, "png"))) as found:
        assert np.array_equal(np.asarray(found), image.squeeze())
    with Image.open(io.BytesIO(encode(image, "webp"))) as found:
        assert found.format == "WEBP"


def test_encoded_bytes_are_kept_or_converted() -> None:
    png = encode(pixels(8, 8, 4), "png")
    assert encode(png, "png") == png
    with Image.open(io.BytesIO(encode(png, "jpeg"))) as image:
        assert (image.format, image.mode) == ("JPEG", "RGB")


@pytest.mark.parametrize(
    "value", [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 7), np.uint8), "text", b"no image"]
)
def test_what_is_no_image_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="no image"):
        encode(value, "png")
