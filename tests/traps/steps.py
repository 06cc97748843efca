"""The functions of the python steps of the cases."""

from __future__ import annotations

from typing import Any

import numpy as np

Batch = dict[str, np.ndarray]


def fail(batch: Batch) -> dict[str, Any]:
    raise ValueError("no row is good")


def keep(batch: Batch) -> Batch:
    return batch


def mean_model() -> Any:
    import torch

    class Mean(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return image.float().mean(dim=(1, 2, 3))

    return Mean()


def root() -> Any:
    """Return a model whose result for a negative number is NaN."""
    import torch

    class Root(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sqrt(x)

    return Root()


def inverse() -> Any:
    """Return a model whose result for 0 is infinite."""
    import torch

    class Inverse(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1 / x

    return Inverse()
