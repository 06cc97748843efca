"""User models: factories that the jobs of these tests name."""

from __future__ import annotations

import numpy as np
import torch
from own_code import Scripted


class SmallDevice(torch.nn.Module):
    """Sums the features of each row. Its device holds at most `limit` rows at once."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._most = limit

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if len(features) > self._most:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {len(features)} rows")
        return features.sum(dim=1)


class ScriptedModel(torch.nn.Module):
    """Does what the texts say, like `own_code.Scripted`. It gets them as numbers."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._run = Scripted(directory)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        texts = [bytes(row).decode().rstrip() for row in codes.tolist()]
        self._run({"text": np.array(texts)})
        return codes


def scripted(directory: str) -> torch.nn.Module:
    return ScriptedModel(directory)


def small_device(limit: int) -> torch.nn.Module:
    return SmallDevice(limit)
