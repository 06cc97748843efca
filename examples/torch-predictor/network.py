"""The network of this example, and the step that selects the most likely class."""

from __future__ import annotations

import numpy as np
import torch


class Classifier(torch.nn.Module):
    """Maps features (batch x features) to probabilities (batch x classes)."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(features, 16), torch.nn.ReLU(), torch.nn.Linear(16, classes)
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(features), dim=1)


def best(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add the most likely class of each row."""
    probabilities = np.stack(list(batch["probabilities"]))
    return {**batch, "predicted": probabilities.argmax(axis=1)}
