"""The steps of the job: each function gets a batch and returns one."""

import numpy as np


def measure(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add the number of characters (int64) of the column `text`."""
    lengths = [len(text) for text in batch["text"]]
    return {**batch, "characters": np.array(lengths)}
