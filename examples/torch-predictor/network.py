"""The network of this example, and what is made of its output."""

from __future__ import annotations

import numpy as np
import torch


class Classifier(torch.nn.Module):
    """A small network: batch x features to batch x classes, probabilities."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(features, 16), torch.nn.ReLU(), torch.nn.Linear(16, classes)
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(features), dim=1)


def best(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Adds the most likely class."""
    probabilities = np.stack(list(batch["probabilities"]))
    return {**batch, "predicted": probabilities.argmax(axis=1)}
