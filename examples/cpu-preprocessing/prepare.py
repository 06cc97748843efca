"""Create the input of this example: images of many sizes, and a network as an exported program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

HERE = Path(__file__).resolve().parent
COUNT, SIDE, WIDTH = 60, 64, 16


class Network(torch.nn.Module):
    """Maps uint8 images (batch x height x width x 3) to vectors (batch x WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, stride=2)
        self.second = torch.nn.Conv2d(8, WIDTH, 3, stride=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        pixels = image.permute(0, 3, 1, 2).float() / 255
        return torch.relu(self.second(torch.relu(self.first(pixels)))).mean(dim=(2, 3))


def main() -> None:
    torch.manual_seed(0)
    write_pictures(HERE / "data")
    (HERE / "model").mkdir(exist_ok=True)
    example = (torch.zeros(2, SIDE, SIDE, 3, dtype=torch.uint8),)
    rows = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(Network().eval(), example, dynamic_shapes=rows)
    torch.export.save(program, HERE / "model" / "network.pt2")


def write_pictures(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    for number in range(COUNT):
        height, width = generator.integers(80, 200, 2)
        pixels = generator.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((int(width), int(height))).save(directory / f"{number}.jpg")


if __name__ == "__main__":
    main()
