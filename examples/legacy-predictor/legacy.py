"""An existing predictor for one machine, which maps a list of images to a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torchvision
from PIL.Image import Image


class TorchPredictor:
    """Runs a torchvision network with the transforms of its weights."""

    def __init__(self, model: Callable[..., torch.nn.Module], weights: Any) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model(weights=weights).to(self.device).eval()
        self.transform = weights.transforms()

    def predict_batch(self, batch: list[Image]) -> torch.Tensor:
        """Return the class probabilities of each image: batch x classes."""
        with torch.inference_mode():
            images = torch.stack([self.transform(image.convert("RGB")) for image in batch])
            logits = self.model(images.to(self.device))
            return torch.nn.functional.softmax(logits, dim=1)


def seeded_resnet152(weights: Any) -> torch.nn.Module:  # noqa: ARG001 - the signature of torchvision
    """Return a ResNet152 with seeded random weights, which needs no download."""
    torch.manual_seed(0)
    return torchvision.models.resnet152(weights=None)


def top_class(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Replace the probabilities of each image by its most likely class and its confidence."""
    probabilities = np.stack(list(batch["probabilities"]))
    return {
        "path": batch["path"],
        "predicted_class_idx": probabilities.argmax(axis=1),
        "confidence": probabilities.max(axis=1),
    }
