"""The function that both sides of many_files.py run."""

from __future__ import annotations

import numpy as np


def distance(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add the distance of (x, y) from the origin."""
    return {**batch, "distance": np.sqrt(batch["x"] ** 2 + batch["y"] ** 2)}
