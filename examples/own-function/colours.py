"""Describes pictures by their brightness and their main colour."""

from __future__ import annotations

from typing import Any

import numpy as np

COLOURS = {
    "black": (0, 0, 0),
    "blue": (40, 80, 200),
    "green": (40, 140, 60),
    "grey": (128, 128, 128),
    "orange": (240, 150, 40),
    "red": (200, 40, 40),
    "white": (255, 255, 255),
}
NAMES = list(COLOURS)
PALETTE = np.array(list(COLOURS.values()))


def describe(batch: dict[str, np.ndarray], dark: float) -> dict[str, Any]:
    """Return the path, brightness (0 to 1), main colour and caption of each picture."""
    brightness = [float(image.mean()) / 255 for image in batch["image"]]
    colours = [main_colour(image) for image in batch["image"]]
    pairs = zip(brightness, colours, strict=True)
    return {
        "path": batch["path"],
        "brightness": brightness,
        "colour": colours,
        "caption": [
            f"a {'dark' if value < dark else 'bright'} picture, mostly {colour}"
            for value, colour in pairs
        ],
    }


def main_colour(image: np.ndarray) -> str:
    """Return the colour that is nearest to most pixels of an image: height x width x 3."""
    distances = np.linalg.norm(image.reshape(-1, 1, 3) - PALETTE, axis=2)
    return NAMES[np.bincount(distances.argmin(axis=1)).argmax()]
