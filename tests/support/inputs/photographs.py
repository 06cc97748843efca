"""Photographs of scikit-image, read without its modules, which take long to import."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import skimage
from PIL import Image


def photograph(name: str) -> np.ndarray:
    """Return a photograph (height, width, RGB): astronaut, chelsea, coffee or rocket."""
    (path,) = Path(skimage.data_dir).glob(f"{name}.*")
    with Image.open(path) as image:
        return np.array(image.convert("RGB"))
