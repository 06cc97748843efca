"""Create the input of this example: points around three centres, and a network trained on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from network import Classifier

HERE = Path(__file__).resolve().parent
FEATURES, CLASSES, ROWS, FILES = 4, 3, 3000, 3


def main() -> None:
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    centres = 3 * generator.standard_normal((CLASSES, FEATURES))
    labels = generator.integers(0, CLASSES, ROWS)
    points = (centres[labels] + generator.standard_normal((ROWS, FEATURES))).astype(np.float32)
    write_rows(HERE / "data", points, labels)
    train(HERE / "model", points, labels)


def write_rows(directory: Path, points: np.ndarray, labels: np.ndarray) -> None:
    directory.mkdir(exist_ok=True)
    for number in range(FILES):
        table = pa.table({"features": list(points[number::FILES]), "label": labels[number::FILES]})
        pq.write_table(table, directory / f"points-{number}.parquet")


def train(directory: Path, points: np.ndarray, labels: np.ndarray) -> None:
    network = Classifier(FEATURES, CLASSES)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    inputs, targets = torch.tensor(points), torch.tensor(labels)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.nll_loss(network(inputs).log(), targets).backward()
        optimizer.step()
    directory.mkdir(exist_ok=True)
    torch.save(network.state_dict(), directory / "weights.pt")


if __name__ == "__main__":
    main()
