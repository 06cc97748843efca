"""Preprocesses images for the model."""

from __future__ import annotations

import numpy as np
from PIL import Image


def centre(batch: dict[str, np.ndarray], side: int) -> dict[str, np.ndarray]:
    """Crop each image to its central square and resize it: batch x side x side x 3."""
    return {**batch, "image": np.stack([_square(image, side) for image in batch["image"]])}


def _square(image: np.ndarray, side: int) -> np.ndarray:
    height, width = image.shape[:2]
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    cut = Image.fromarray(np.ascontiguousarray(image[top : top + edge, left : left + edge]))
    return np.asarray(cut.resize((side, side), Image.Resampling.BILINEAR))
