"""How the peers of the case `images` of throughput.py decode."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 224


def decoded(path: Path) -> np.ndarray:
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        image.draft("RGB", (2 * SIZE, 2 * SIZE))
        resized = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        return np.asarray(resized)
