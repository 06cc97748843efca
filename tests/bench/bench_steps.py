"""The functions of the steps of benchmarks, which their peers run, too."""

from __future__ import annotations

import socket
import time
from functools import cache
from typing import Any

import numpy as np

WIDTH, LAYERS = 1024, 24
NAP_SECONDS = 0.02
Arrays = dict[str, np.ndarray]


def distance(batch: Arrays) -> Arrays:
    """Add the distance of (x, y) from the origin."""
    return {**batch, "distance": np.sqrt(batch["x"] ** 2 + batch["y"] ** 2)}


def lengths(batch: Arrays) -> dict[str, Any]:
    """Add the length of each text."""
    return {**batch, "length": np.array([len(text) for text in batch["text"]])}


class Length:
    """Adds the lengths of texts. Raises ValueError for the text `bad`."""

    def __call__(self, batch: Arrays) -> dict[str, Any]:
        if "bad" in batch["text"].tolist():
            raise ValueError("a bad text")
        return lengths(batch)


def identity() -> Any:
    """Return a model that passes on its input."""
    import torch

    return torch.nn.Identity()


def stamp(batch: Arrays) -> Arrays:
    """Add the time at which the batch is computed."""
    return {**batch, "at": np.full(len(batch["text"]), time.time())}


def wait(batch: Arrays, seconds: float) -> Arrays:
    """Sleep for this many seconds per row, and return the batch unchanged."""
    time.sleep(seconds * len(next(iter(batch.values()))))
    return batch


def nap(row: dict[str, Any]) -> dict[str, Any]:
    """Sleep, and add the times and the host to the row. Needs almost no CPU."""
    began = time.time()
    time.sleep(NAP_SECONDS)
    return {**row, "began": began, "ended": time.time(), "pod": socket.gethostname()}


def score(batch: Arrays) -> Arrays:
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
