"""The step of checkpoint.py."""

from __future__ import annotations

from functools import cache

import numpy as np

WIDTH, LAYERS = 1024, 24


def score(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Apply a small network with random weights to (x, y). Takes half a millisecond per row."""
    first, others = _weights()
    values = np.stack([batch["x"], batch["y"]], axis=1).astype(np.float32) @ first
    for _ in range(LAYERS):
        values = np.tanh(values @ others)
    return {**batch, "score": values.mean(axis=1)}


@cache
def _weights() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    first = generator.standard_normal((2, WIDTH), dtype=np.float32)
    others = generator.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.sqrt(WIDTH)
    return first, others.astype(np.float32)
