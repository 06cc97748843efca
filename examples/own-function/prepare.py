"""Create the input of this example: pictures as JPEG files, and a CSV file about them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
SIZE = (120, 160)
PICTURES = {
    "forest": ((60, 150, 80), "Black Forest"),
    "night": ((5, 5, 20), "Black Forest"),
    "sea": ((60, 100, 220), "Brittany"),
    "snow": ((245, 245, 250), "Tyrol"),
    "sunset": ((240, 150, 40), "Brittany"),
}


def main() -> None:
    write_pictures(HERE / "data" / "pictures")
    write_table(HERE / "data" / "photos.csv")


def write_pictures(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for name, (colour, _) in PICTURES.items():
        noise = generator.normal(0, 10, (*SIZE, 3))
        pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(directory / f"{name}.jpg")


def write_table(file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["file", "place"])
        writer.writerows([f"{name}.jpg", region] for name, (_, region) in PICTURES.items())


if __name__ == "__main__":
    main()
