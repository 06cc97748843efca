"""How the peers of benchmarks decode images."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 224


def decoded(path: Path) -> np.ndarray:
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        image.draft("RGB", (2 * SIZE, 2 * SIZE))
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def decode(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Decode the images of a batch of Ray Data."""
    images = [decoded(Path(path)) for path in batch["path"]]
    return {"path": batch["path"], "image": np.stack(images)}


class Images:
    """The images of a directory, as a data set of PyTorch."""

    def __init__(self, directory: str) -> None:
        self.paths = sorted(Path(directory).iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> np.ndarray:
        return decoded(self.paths[number])
