"""The steps of the job. Each function gets a batch of rows, and returns a batch."""

import numpy as np


def measure(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add the number of characters (int64) of the column `text`."""
    lengths = [len(text) for text in batch["text"]]
    return {**batch, "characters": np.array(lengths)}
