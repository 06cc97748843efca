"""Create the input of this example: images of coloured shapes, and a small model trained on them.

If scikit-image is installed, some of its photographs are added. Training takes a few seconds on one
CPU. All random numbers are seeded.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from transformers import ConvNextImageProcessor, ResNetConfig, ResNetForImageClassification

HERE = Path(__file__).resolve().parent
CLASSES = ("circle", "square", "triangle")
SIZE = 32
TRAINING, TESTING = 600, 240
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket")


def main() -> None:
    random.seed(0)
    torch.manual_seed(0)
    train_model(HERE / "model")
    write_pictures(HERE / "data")
    write_photographs(HERE / "data" / "photograph")


def draw(kind: str) -> Image.Image:
    """Return an image of a shape with random colour, size, position and background."""
    image = Image.new("RGB", (SIZE, SIZE), tuple(random.choices(range(0, 100), k=3)))
    pen = ImageDraw.Draw(image)
    radius = random.randint(7, 12)
    x, y = (random.randint(radius, SIZE - radius) for _ in range(2))
    box = [x - radius, y - radius, x + radius, y + radius]
    colour = tuple(random.choices(range(140, 256), k=3))
    if kind == "circle":
        pen.ellipse(box, fill=colour)
    elif kind == "square":
        pen.rectangle(box, fill=colour)
    else:
        pen.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], colour)
    return image


def write_pictures(directory: Path) -> None:
    for number in range(TESTING):
        kind = CLASSES[number % len(CLASSES)]
        folder = directory / kind
        folder.mkdir(parents=True, exist_ok=True)
        draw(kind).save(folder / f"{number:03d}.png")


def write_photographs(directory: Path) -> None:
    try:
        from skimage import data
    except ImportError:
        print("no photographs: install scikit-image to add some")
        return
    directory.mkdir(parents=True, exist_ok=True)
    for name in PHOTOGRAPHS:
        Image.fromarray(getattr(data, name)()).save(directory / f"{name}.jpg", quality=90)


def train_model(directory: Path) -> None:
    """Train a ResNet with 60,000 parameters to distinguish the shapes, and save it."""
    processor = ConvNextImageProcessor(
        size={"shortest_edge": SIZE}, crop_pct=1.0, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    config = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 48],
        depths=[1, 1, 1],
        layer_type="basic",
        id2label=dict(enumerate(CLASSES)),
        label2id={name: number for number, name in enumerate(CLASSES)},
    )
    model = ResNetForImageClassification(config)
    labels = torch.tensor([number % len(CLASSES) for number in range(TRAINING)])
    pictures = [np.asarray(draw(CLASSES[label])) for label in labels]
    pixels = processor(pictures, return_tensors="pt", input_data_format="channels_last")[
        "pixel_values"
    ]
    fit(model, pixels, labels)
    model.save_pretrained(directory)
    processor.save_pretrained(directory)


def fit(model: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(12):
        order = torch.randperm(len(labels))
        for batch in order.split(64):
            optimizer.zero_grad()
            model(pixel_values=pixels[batch], labels=labels[batch]).loss.backward()
            optimizer.step()
    model.eval()


if __name__ == "__main__":
    main()
