"""Create the input of this example: a few images of gradients and stripes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
HEIGHT, WIDTH = 240, 320
COUNT = 8


def main() -> None:
    directory = HERE / "data"
    directory.mkdir(exist_ok=True)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    for number in range(COUNT):
        stripes = 127 + 127 * np.sin(columns / (number + 2))
        pixels = np.stack([stripes, rows % 256, (rows + columns) * number % 256], axis=2)
        Image.fromarray(pixels.astype(np.uint8)).save(directory / f"{number}.png")


if __name__ == "__main__":
    main()
