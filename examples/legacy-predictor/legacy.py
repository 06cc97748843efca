"""Inference as it is often written first: one machine, a list of images, a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torchvision
from PIL.Image import Image


class TorchPredictor:
    """A network of torchvision with the transforms of its weights."""

    def __init__(self, model: Callable[..., torch.nn.Module], weights: Any) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model(weights=weights).to(self.device).eval()
        self.transform = weights.transforms()

    def predict_batch(self, batch: list[Image]) -> torch.Tensor:
        """The probabilities of each image: batch x classes."""
        with torch.inference_mode():
            images = torch.stack([self.transform(image.convert("RGB")) for image in batch])
            logits = self.model(images.to(self.device))
            return torch.nn.functional.softmax(logits, dim=1)


def seeded_resnet152(weights: Any) -> torch.nn.Module:  # noqa: ARG001 - as torchvision has it
    """The network with random weights, always the same: it computes as much, and knows nothing."""
    torch.manual_seed(0)
    return torchvision.models.resnet152(weights=None)


def top_class(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The most likely class of each image instead of all probabilities."""
    probabilities = np.stack(list(batch["probabilities"]))
    return {
        "path": batch["path"],
        "predicted_class_idx": probabilities.argmax(axis=1),
        "confidence": probabilities.max(axis=1),
    }
