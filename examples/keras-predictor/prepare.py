"""Create the input of this example: numbers in CSV files, and a Keras model fitted to a curve.

Requires Keras: pip install 'batchinference[runtimes]'
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

HERE = Path(__file__).resolve().parent
ROWS = 500


def main() -> None:
    keras.utils.set_random_seed(0)
    x = np.linspace(-2, 2, ROWS, dtype=np.float32)
    directory = HERE / "data"
    directory.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(x, 2)):
        lines = "".join(f"{value:.4f}\n" for value in part)
        (directory / f"numbers-{number}.csv").write_text("x\n" + lines)
    train(HERE / "model" / "surface.keras", x[:, None])


def train(path: Path, x: np.ndarray) -> None:
    """Train a model of y = x**2, and save it."""
    layers = [keras.Input((1,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.03), "mse")
    model.fit(x, x**2, epochs=60, batch_size=100, verbose=0)
    path.parent.mkdir(exist_ok=True)
    model.save(path)


if __name__ == "__main__":
    main()
