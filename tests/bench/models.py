"""The model that both sides of throughput.py run."""

from __future__ import annotations

import itertools

import torch


class Network(torch.nn.Module):
    """Three convolutions: uint8 images (batch x height x width x 3) to scores (batch x 10)."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 16, 32)
        layers = [
            layer
            for inner, outer in itertools.pairwise(widths)
            for layer in (torch.nn.Conv2d(inner, outer, 3, stride=4, padding=1), torch.nn.ReLU())
        ]
        self.layers = torch.nn.Sequential(*layers)
        self.head = torch.nn.Linear(widths[-1], 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(image.permute(0, 3, 1, 2).float() / 255).mean(dim=(2, 3)))


def network() -> Network:
    torch.manual_seed(0)
    return Network()
