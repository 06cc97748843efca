"""What a model runtime is, and which device it takes."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch


class Runtime(Protocol):
    """A loaded model."""

    def __call__(self, inputs: dict[str, np.ndarray]) -> Any:
        """The results for a batch: an array (or Arrow array) whose first axis is the row.

        `inputs` maps the model's input names to arrays of rows x the column's own shape.
        """


def choose_device(cpus: float, gpus: int) -> torch.device:
    """The device of a replica: its GPU where it was given one that torch can use, else the CPU,
    with as many threads as it has CPUs."""
    if gpus and torch.cuda.is_available():
        return torch.device("cuda")
    torch.set_num_threads(max(1, math.floor(cpus)))
    return torch.device("cpu")
