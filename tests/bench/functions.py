"""The functions that both sides of throughput.py run."""

from __future__ import annotations

from typing import Any

import numpy as np


def distance(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add the distance of (x, y) from the origin."""
    return {**batch, "distance": np.sqrt(batch["x"] ** 2 + batch["y"] ** 2)}


def lengths(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """Add the length of each text."""
    return {**batch, "length": np.array([len(text) for text in batch["text"]])}
