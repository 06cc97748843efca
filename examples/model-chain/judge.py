"""The second model of this example, and its step that counts words."""

from __future__ import annotations

import numpy as np
import torch

WIDTH = 32


class Judge(torch.nn.Module):
    """Maps embeddings (batch x WIDTH) to scores (batch)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 1)

    def forward(self, embedding: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.layer(embedding))[:, 0]


class Length:
    """Adds the number of words of each text."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**batch, "words": np.array([len(text.split()) for text in batch["text"]])}
