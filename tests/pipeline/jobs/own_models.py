"""User models: factories that the jobs of these tests name."""

from __future__ import annotations

import torch


class SmallDevice(torch.nn.Module):
    """Sums the features of each row. Its device holds at most `most` rows at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if len(features) > self._most:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {len(features)} rows")
        return features.sum(dim=1)


def small_device(most: int) -> torch.nn.Module:
    return SmallDevice(most)
