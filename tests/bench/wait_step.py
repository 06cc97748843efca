"""The step of resume.py."""

from __future__ import annotations

import time

import numpy as np


def wait(batch: dict[str, np.ndarray], seconds: float) -> dict[str, np.ndarray]:
    """Sleep for this many seconds per row, and return the batch unchanged."""
    time.sleep(seconds * len(next(iter(batch.values()))))
    return batch
